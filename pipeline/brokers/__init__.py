"""Brokers as one blocking program asks them: routes, connections, offsets of many queues.

The topic source and the sink come in, on the driver and in tasks. Knows no Spark.
"""
