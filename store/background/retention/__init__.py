"""Deletion: decides which segments and queues go, when and why, and takes them off the disk.

`deletion_plan.py` and `rules.py` decide alike for the running store and for the dry run in
`forecast.py`.
"""
