"""Judges whether a store at rest is sound, by reading all of it; `verify.py` begins.

The command line and the tests come in; `repair/` makes its plans from the findings.
"""
