"""Spark, started with all that our formats need: a shell, a program, a declarative pipeline.

The commands are `aerobee pipeline shell` and `... submit APP`. What is run and with which
environment is worked out in `command.py` from the words of the command line; `inside_spark.py` runs
inside the Python that is Spark's driver.
"""
