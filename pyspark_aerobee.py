"""Spark finds `format("rocketmq")` here by itself: a top-level `pyspark_*` with a DefaultSource."""

from aerobee.pipeline.source.topic_source import TopicSource as DefaultSource  # noqa: F401
