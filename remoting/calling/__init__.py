"""The calling end: connects, asks, is asked, closes; for an event loop and for blocking programs.

Clients, the broker's registration and the pipeline come in.
"""
