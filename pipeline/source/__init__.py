"""`format("rocketmq")`, reading: options, plans of batches and streams, the tasks that pull.

`topic_source.py` is the face for Spark; plans know offsets and no Spark.
"""
