"""The commit log: messages become records, under the put lock, in the newest segment.

`commit_log.py` is the one writer of the log, `marks.py` says how far it is written, committed,
durable and dispatched. Dispatch, flush services and readers above are given `store_core.py`'s
value; nothing here knows them.
"""
