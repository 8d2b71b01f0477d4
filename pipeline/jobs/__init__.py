"""Offline jobs over stores, backups and archives: audit, rebuild, archive, replay, traffic, ...

One module for each job; `run.py` runs a job from its arguments, for the command line and
spark-submit.
"""
