"""`format("rocketmq-store")`: the files of a store read without a broker.

`store_source.py` is the face for Spark; a plan is made on the driver, tasks read bytes of
segments.
"""
