"""Requests of clients about themselves, and the broker's calls to them.

Heartbeats, members, offsets, order locks, replies, resets; the router comes in by `handlers()`.
"""
