"""RocketMQ's files of accounts: found, read, judged, changed.

Rules come out as values of `accounts.py`; nothing here judges a request.
"""
