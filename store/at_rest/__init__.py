"""A store that no broker has open: `audit/` judges it, `repair/` changes it.

The command line and Spark's jobs come in; a running store imports nothing of it.
"""
