"""`format("rocketmq")`, writing: options, the check of columns, tasks that send or stage.

`topic_sink.py` is the face for Spark.
"""
