"""The way of messages: send, pull, held pulls, waiting acknowledgements, retry, query.

The hot path of the daemon. `core.py` registers its handlers at the router.
"""
