"""The parts that follow an append: dispatch, answers that wait, held pulls.

`appending.py` is the value that all parts share which append; delays, transactions, staging and the
handlers of messages come in, and the store's events.
"""
