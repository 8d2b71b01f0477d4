"""Spark: topics and raw log files as DataFrames, a sink, and offline jobs.

Spark finds the formats through `pyspark_aerobee.py` and `pyspark_aerobee_store.py`; the command
line runs the jobs. Only modules named after a Spark class know Spark's classes.
"""
