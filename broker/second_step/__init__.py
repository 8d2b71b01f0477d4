"""The second step of storing: accepted messages that have waited go where they were sent.

Delay levels, timers, commits of transactions, and staged rows pass `second_step.py`, which repeats
the checks of their acceptance; `deleted_topics.py` remembers which topics were deleted.
"""
