"""Tables that a stream writes batches to: Parquet directories, Delta and Iceberg.

Each batch has a number, and a table takes each number of a stream once, however often it is
written. `table.py` says what all tables have in common, `packages.py` what Spark needs for them.
"""
