"""Words of other connectors, and what to use here in their place.

Spark hands the names of options over in small letters, so an answer shows them as their own manual
writes them. The tables leave out options that mean the same under the same name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from aerobee.pipeline.decode.columns import TOPIC_COLUMNS

_KAFKA: Final = "Kafka's connector"
_PULSAR: Final = "Pulsar's connector"
_FILES: Final = "tables of files"
_ROCKETMQ_SPARK: Final = "rocketmq-spark"
_ROCKETMQ_FLINK: Final = "rocketmq-flink"
_NAME_SERVER: Final = "use nameServer, host:port of RocketMQ's name servers"

#: Name as its own manual writes it -> whose it is, and what to do here.
_Words = dict[str, tuple[str, str]]
_BOTH: Final[_Words] = {
    "kafka.bootstrap.servers": (_KAFKA, _NAME_SERVER),
    "kafka.security.protocol": (_KAFKA, "use useTls, and accessKey with secretKey"),
    "kafka.sasl.mechanism": (_KAFKA, "use accessKey and secretKey"),
    "kafka.sasl.jaas.config": (_KAFKA, "use accessKey and secretKey"),
    "kafka.ssl.truststore.location": (_KAFKA, "use useTls and trustStore, a PEM file"),
    "service.url": (_PULSAR, _NAME_SERVER),
    "admin.url": (_PULSAR, "leave it out; nameServer is enough"),
    "nameServerAddress": (_ROCKETMQ_FLINK, "use nameServer"),
}
SOURCE_WORDS: Final[_Words] = {
    **_BOTH,
    "path": (_FILES, "use topic; load() has nothing in its brackets here"),
    "kafka.group.id": (_KAFKA, "use consumerGroup"),
    "kafka.auto.offset.reset": (_KAFKA, "use startingOffsets"),
    "kafka.enable.auto.commit": (_KAFKA, "leave it out: offsets are in Spark's checkpoint"),
    "kafka.max.poll.records": (_KAFKA, "use pullBatchSize"),
    "kafka.request.timeout.ms": (_KAFKA, "use pullTimeoutMs"),
    "kafkaConsumer.pollTimeoutMs": (_KAFKA, "use pullTimeoutMs"),
    "fetchOffset.numRetries": (_KAFKA, "use pullTimeoutMs: a broker has ten times that"),
    "fetchOffset.retryIntervalMs": (_KAFKA, "use pullTimeoutMs: a broker has ten times that"),
    "topics": (_PULSAR, "use subscribe, a comma list"),
    "topicsPattern": (_PULSAR, "use subscribePattern"),
    "startingTime": (_PULSAR, "use startingTimestamp"),
    "group": (_ROCKETMQ_SPARK, "use consumerGroup"),
    "pullTimeout": (_ROCKETMQ_SPARK, "use pullTimeoutMs"),
    "rocketmq.source.topic": (_ROCKETMQ_FLINK, "use topic, or subscribe for several"),
    "rocketmq.source.group": (_ROCKETMQ_FLINK, "use consumerGroup"),
    "rocketmq.source.filter.tag": (_ROCKETMQ_FLINK, "use subExpression"),
    "rocketmq.source.filter.sql": (_ROCKETMQ_FLINK, "use subExpression with expressionType=SQL92"),
    "rocketmq.source.startup.scan.mode": (_ROCKETMQ_FLINK, "use startingOffsets"),
    "rocketmq.source.startup.offset.specific": (_ROCKETMQ_FLINK, "use startingOffsets"),
    "rocketmq.source.startup.offset.timestamp": (_ROCKETMQ_FLINK, "use startingTimestamp"),
    "rocketmq.source.startup.offset.date": (_ROCKETMQ_FLINK, "use startingTimestamp"),
    "rocketmq.source.stop.offset.timestamp": (_ROCKETMQ_FLINK, "use endingTimestamp in a batch"),
    "rocketmq.source.pull.batch.size": (_ROCKETMQ_FLINK, "use pullBatchSize"),
    "rocketmq.source.pull.rpc.timeout": (_ROCKETMQ_FLINK, "use pullTimeoutMs"),
}
SINK_WORDS: Final[_Words] = {
    **_BOTH,
    "path": (_FILES, "use topic; save() and start() have nothing in their brackets here"),
    "kafka.acks": (_KAFKA, "use acceptCodes; whether a send waits for the disk the broker decides"),
    "kafka.batch.size": (_KAFKA, "use batchBytes"),
    "kafka.linger.ms": (_KAFKA, "leave it out: rows go when a batch is full, and at the end"),
    "kafka.compression.type": (_KAFKA, "leave it out: bodies are sent as they are"),
    "kafka.max.in.flight.requests.per.connection": (_KAFKA, "use inFlight"),
    "kafka.request.timeout.ms": (_KAFKA, "use sendTimeoutMs"),
    "kafka.enable.idempotence": (_KAFKA, "use guarantee"),
    "includeHeaders": (_KAFKA, "leave it out: a column headers is written if it is there"),
    "group": (_ROCKETMQ_SPARK, "use producerGroup"),
    "produceGroup": (_ROCKETMQ_FLINK, "use producerGroup"),
    "rocketmq.sink.topic": (_ROCKETMQ_FLINK, "use topic"),
    "rocketmq.sink.group": (_ROCKETMQ_FLINK, "use producerGroup"),
    "rocketmq.sink.tag": (_ROCKETMQ_FLINK, "write a column tags"),
    "rocketmq.sink.key": (_ROCKETMQ_FLINK, "write a column keys"),
    "rocketmq.sink.delivery.guarantee": (_ROCKETMQ_FLINK, "use guarantee"),
    "rocketmq.sink.send.timeout": (_ROCKETMQ_FLINK, "use sendTimeoutMs"),
}
#: A column of Kafka's source -> the column of a topic here.
COLUMN_WORDS: Final = {
    "key": "keys",
    "value": "body",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
}
_KAFKA_CLIENT: Final = "kafka."
_NO_COLUMN: Final = re.compile(r"\[UNRESOLVED_COLUMN\b.*?\] (.*?with name `(.*?)` .*)")
_STATE: Final = re.compile(r" SQLSTATE: \w+;?$")


def source_word(name: str) -> str | None:
    """The advice for a reader's option of another connector; None if no other has it."""
    return _said(name, SOURCE_WORDS)


def sink_word(name: str) -> str | None:
    """The advice for a writer's option of another connector; None if no other has it."""
    return _said(name, SINK_WORDS)


def _said(name: str, words: Mapping[str, tuple[str, str]]) -> str | None:
    lower = name.lower()
    for written, (whose, advice) in words.items():
        if written.lower() == lower:
            return f"option {written} is one of {whose}: {advice}"
    if lower.startswith(_KAFKA_CLIENT):
        return (
            f"option {name} is a setting of Kafka's client, which is not used here: leave it out; "
            "what there is stands in docs/spark-source.md and docs/spark-sink.md"
        )
    return None


def missing_column(text: str) -> str | None:
    """One sentence of an error of Spark about a column it cannot find; None of any other error."""
    found = _NO_COLUMN.match(text.partition("\n")[0])
    if found is None:
        return None
    said, name = _STATE.sub("", found[1]), found[2].lower()
    if name in COLUMN_WORDS:
        return f"{said} A topic's column is {COLUMN_WORDS[name]}."
    for column in TOPIC_COLUMNS:
        if column.name.lower() == name and not column.standard:
            return f"{said} A topic has it when option columns names it (columns=* takes all)."
    return said
