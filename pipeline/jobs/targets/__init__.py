"""Directories that jobs write to: of this machine, of an object store, of Spark's file systems.

`target.py` and `hadoop.py` are the two kinds; `ledger.py` puts ranges of a log into one, each once.
"""
