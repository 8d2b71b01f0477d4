"""The second step of storing: what was accepted and has waited goes to where it was sent.

Delay levels, timers, commits of transactions, and staged rows pass `second_step.py`, which asks
again what was asked when they were accepted; `deleted_topics.py` remembers which topics were
deleted.
"""
