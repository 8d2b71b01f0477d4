"""The commit log: messages become records, under the put lock, in the newest segment.

`commit_log.py` is the one writer of the log. The dispatch, the flush services and the readers
above ask it for its marks; nothing here knows its readers. `store_core.py` is the
value that they are given.
"""
