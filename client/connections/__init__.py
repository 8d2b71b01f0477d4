"""The parts that every role of a client shares: connections, routes, heartbeats, background tasks.

Producers, consumers and administration come in through `session.py`.
"""
