"""What clients do with messages: send, pull, held pulls, acknowledgements, retry, query.

The hot path of the daemon. `core.py` registers its handlers at the router.
"""
