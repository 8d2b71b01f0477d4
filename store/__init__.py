"""The store of a broker: commit log, consume queues, index, and all that keeps them sound.

Plain calls and threads, no event loop. `message_store.py` is the door for the daemon; the tools
for a store at rest (`at_rest/`) and Spark read the files through the lower floors.
"""
