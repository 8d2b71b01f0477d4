"""Answers for consumers: messages of a queue, single records, searches, due delayed messages.

Reads through the table of queues, the index and the log, and names damage where it meets it.
The broker asks through the store.
"""
