"""The commit log: messages become records, under the put lock, in the newest segment.

`commit_log.py` is the only writer of the log. The dispatch, the flush services and the readers
above ask it for its marks; nothing here knows its readers.
"""
