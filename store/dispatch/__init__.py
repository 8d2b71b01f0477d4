"""Reput: puts the log's messages into consume queues and index, which makes them visible.

The last append feeds it, or it reads the log when it is late; both give the same bytes. The store
and its recovery drive it.
"""
