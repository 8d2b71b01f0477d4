"""One connection, and what the connections of a server share: frames, turns, budgets, calls.

Both ends stand on it: `listening/` admits connections, `calling/` opens them.
"""
