"""`aerobee pipeline stream`: live topics into tables of a lake, each message exactly once.

`stream_run.py` runs it as `job_plan.py` says, `bodies.py` makes columns of bodies,
`stream_memory.py` keeps what a stream knows beside its checkpoint, and `tables/` write batches.
"""
