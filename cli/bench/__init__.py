"""`aerobee bench`: loads on a running broker, and their measurements.

`command.py` runs one measurement: `bench_plan.py` says what it is, `bench_topics.py` makes its
topics, `fleet.py` starts processes of `worker.py`, `measure.py` leads them, `bench_result.py` and
`plot.py` tell. `security.py` has requests signed and connections encrypted.
"""
