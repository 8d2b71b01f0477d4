"""Makes written bytes durable: flush threads, commit service, the offsets file keeper.

Moves the durable mark, which acknowledgements and dispatch wait for. `services.py` has GroupCommit
and FlushRealTime, the threads that sync. Only the store starts it.
"""
