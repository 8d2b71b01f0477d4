"""Deletion: decides which segments and queues go, when and why, and takes them off the disk.

`triggers.py` says when a run deletes, `deletion_plan.py` which segments go and which stay; both
decide alike for the running store and for the dry run in `forecast.py`. `queue_cleaning.py` removes
whole queues.
"""
