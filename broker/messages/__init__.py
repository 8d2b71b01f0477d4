"""The work of clients on messages: send, pull, held pulls, acknowledgements, retry, query.

The hot path of the daemon. `core.py` registers its handlers at the router.
"""
