"""Clients' requests with messages: send, pull, retry, recall, query; also in the compiled form.

The hot path of the daemon. `core.py` registers its handlers at the router.
"""
