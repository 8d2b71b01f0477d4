"""Offline jobs over stores, backups and archives.

One module for each job: audit, rebuild, archive, replay, traffic, retention, dlq. `run.py` runs a
job from its arguments, for the command line and spark-submit.
"""
