"""Lets Spark find `format("rocketmq-store")` by itself.

Spark looks for a class DefaultSource in every top-level module named `pyspark_*`. One such module
that cannot be imported would hide all of them, so this module is empty where PySpark is too old.
"""

try:
    from aerobee.pipeline.files.store_source import RocketMQStoreSource as DefaultSource
except ImportError:
    pass
else:
    __all__ = ["DefaultSource"]
