"""Handlers of the requests around messages: administration, clients, offsets, queues, locks.

One module a subject, each a plain call on tables and store. `core.py` registers them at the
router.
"""
