"""`aerobee pipeline stream`: live topics into tables of a lake, each message exactly once.

`run.py` runs it; `arguments.py` and `plan.py` say what is asked for, `bodies.py` makes columns of
bodies, `memory.py` keeps what a stream knows beside its checkpoint, `tables/` write batches.
"""
