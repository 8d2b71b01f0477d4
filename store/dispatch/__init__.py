"""Reput: what the commit log holds goes into consume queues and index, and becomes visible.

Fed by the append that just happened, or by reading the log when it is behind; both give the
same bytes. The store and its recovery drive it.
"""
