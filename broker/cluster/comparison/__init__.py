"""Comparison: whether and from where a slave follows its master, before it asks for the log.

`comparing.py` has the rules, `first_difference.py` reads both logs for them, `master_requests.py`
asks the master, and `log_ranges.py` answers the slaves of this broker.
"""
