"""Is a store sound? Reads what a store at rest holds; `verify.py` begins.

The command line and the tests come in; `repair/` plans by what is found here.
"""
