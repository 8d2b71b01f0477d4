"""Transactions: half messages, their commits and rollbacks, and the check-back of undecided ones.

`transactions.py` builds it; sends and END_TRANSACTION come in, a timer drives the checks.
"""
