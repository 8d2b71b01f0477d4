"""A store that no broker has open: `audit/` judges it, `repair/` changes it; `backup/` copies also
one in use.

The command line and Spark's jobs come in; a running store imports nothing of it.
"""
