"""The parts that follow an append: the dispatch, the answers that wait, the pulls that are held.

`appending.py` is the value that all parts share which append; delays, transactions, staging and the
handlers of messages come in, and the store's events.
"""
