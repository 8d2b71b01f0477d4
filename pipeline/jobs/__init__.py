"""Offline jobs over stores, backups and archives: audit, rebuild, archive, replay, traffic, ...

One module a job; `run.py` runs one from its arguments, for the command line and spark-submit.
"""
