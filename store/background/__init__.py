"""Work in the background of a running store: `retention/` deletes, `scrub/` checks and repairs.

`message_store.py` starts and stops it; each sub-folder is one service.
"""
