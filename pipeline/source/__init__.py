"""`format("rocketmq")`, reading: options, plans of batches and streams, the tasks that pull.

`batch_plan.py` finds the offsets that a batch reads, `stream_plan.py` those of a stream's batches;
plans know no Spark. `topic_source.py` is the face for Spark: it cuts planned ranges into partitions
(`split` in `brokers/offsets.py`), which `range_reader.py` and `range_rows.py` read.
"""
