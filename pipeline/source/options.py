"""The options of the topic source: typed, checked against each other, before a broker is asked.

Rules that differ between batch and stream are those shared by Spark's Kafka source and RocketMQ's
own connector: a stream starts at the latest message, a batch reads from the earliest to the latest;
a batch neither starts at latest nor ends at earliest; a stream has no end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aerobee.pipeline.brokers.access import ACCESS_OPTIONS, Access, read_access, topic_options
from aerobee.pipeline.brokers.offsets import EARLIEST, LATEST, Queue, parse_assign, parse_offsets
from aerobee.pipeline.decode.columns import TOPIC_COLUMNS, Column
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.options import OptionMap, read_columns
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import (
    ALL_MESSAGES,
    SQL_TYPE,
    TAG_TYPE,
    parse_tag_expression,
)
from aerobee.protocol.names import check_group_name

_WHAT: Final = ("topic", "subscribe", "subscribePattern", "assign")
_ENDS: Final = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY: Final = ("startStateLocation", "commitOffsetsToBroker")
SOURCE_OPTIONS: Final = (
    *ACCESS_OPTIONS, *_WHAT, "subExpression", "expressionType",
    "startingOffsets", "startingTimestamp", *_ENDS,
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "failOnDataLoss",
    "consumerGroup", "groupIdPrefix", *_STREAM_ONLY, "pullBatchSize", "pullTimeoutMs",
    "columns", "propertiesFormat", "decompress", "includeSystemProperties", "pushdown",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Which offsets reading starts or ends at: an end of each queue, a time, or given offsets.

    `offsets` may hold EARLIEST and LATEST; what they do not name is at `otherwise`.
    """

    otherwise: int = EARLIEST
    timestamp_ms: int | None = None
    offsets: tuple[tuple[Queue, int], ...] = ()

    @property
    def moves(self) -> bool:
        """Whether resolving it later gives something else, messages left out."""
        named = [offset for _, offset in self.offsets]
        return self.timestamp_ms is not None or LATEST in (self.otherwise, *named)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of one read; see the table in the manual of the pipeline."""

    access: Access
    topics: tuple[str, ...]
    pattern: str | None
    assigned: frozenset[Queue] | None
    expression: str  # the tags, for the broker
    tags: frozenset[str]
    condition: str | None  # SQL92, evaluated here
    start: OffsetSpec
    end: OffsetSpec
    most_rows: int | None
    most_bytes: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    group: str
    has_group: bool  # whether the user named it
    commit_offsets: bool
    start_state_location: str | None
    pull_batch: int | None  # None: as much as the broker gives
    columns: tuple[Column, ...]
    properties_format: str
    decompress: bool
    system_properties: bool
    pushdown: bool

    def wants(self, queue: Queue) -> bool:
        """Whether a queue of one of the topics is to be read."""
        return self.assigned is None or queue in self.assigned

    def wants_topic(self, topic: str) -> bool:
        """Whether a topic's name fits the pattern; the whole name must."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None


def read_source_options(
    given: Mapping[str, str], *, streaming: bool | None = None
) -> SourceOptions:
    """The options; OptionError says which is wrong.

    `streaming` None leaves out the rules that differ: the schema is asked for before Spark says
    which one it is.
    """
    options = topic_options(given, SOURCE_OPTIONS)
    topics, pattern, assigned = _what(options)
    expression, tags, condition = _expression(options)
    if streaming:
        _refuse(options, _ENDS, "a stream has no end")
    elif streaming is False:
        _refuse(options, _STREAM_ONLY, "it is for streams")
    start = _offset_spec(options, "starting", LATEST if streaming else EARLIEST)
    end = _offset_spec(options, "ending", LATEST)
    if streaming is False:
        _check_batch(start, end)
        _check_order(options, start, end)
    group, has_group = _group(options)
    if (commit := options.boolean("commitOffsetsToBroker", False)) and not has_group:
        raise OptionError("option commitOffsetsToBroker needs a consumerGroup to commit for")
    text_form = options.choice("propertiesFormat", ("map", "json", "raw"), "map")
    timeout_ms = options.integer("pullTimeoutMs", 3000, 1, 3_600_000) or 3000
    return SourceOptions(
        access=read_access(options, timeout_ms / 1000),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        expression=expression,
        tags=tags,
        condition=condition,
        start=start,
        end=end,
        most_rows=options.integer("maxOffsetsPerTrigger", None, 1),
        most_bytes=options.size("maxBytesPerTrigger", 0) or None,
        min_partitions=options.integer("minPartitions", None, 1, 1_000_000),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        group=group,
        has_group=has_group,
        commit_offsets=commit,
        start_state_location=options.text("startStateLocation"),
        pull_batch=options.integer("pullBatchSize", None, 1, 1_000_000),
        columns=read_columns(options, TOPIC_COLUMNS, text_form),
        properties_format=text_form,
        decompress=options.boolean("decompress", True),
        system_properties=options.boolean("includeSystemProperties", False),
        pushdown=options.boolean("pushdown", False),
    )


def _refuse(options: OptionMap, names: Iterable[str], why: str) -> None:
    for name in options.given(names):
        raise OptionError(f"option {name} cannot be used here: {why}")


def _what(options: OptionMap) -> tuple[tuple[str, ...], str | None, frozenset[Queue] | None]:
    kinds = options.given(_WHAT)
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise OptionError(f"exactly one of {', '.join(_WHAT)} is needed, found {found}")
    kind = kinds[0]
    if kind == "assign":
        try:
            assigned = parse_assign(options.text(kind) or "")
        except ValueError as error:
            raise OptionError(f"option assign: {error}") from error
        return tuple(sorted({queue.topic for queue in assigned})), None, assigned
    if kind == "subscribePattern":
        pattern = options.text(kind) or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option subscribePattern is no regular expression: {error}") from (
                error
            )
        return (), pattern, None
    topics = tuple(dict.fromkeys(options.names(kind) or ()))
    if kind == "topic" and len(topics) != 1:
        raise options.wrong(kind, "is not one topic; several go into subscribe")
    return topics, None, None


def _expression(options: OptionMap) -> tuple[str, frozenset[str], str | None]:
    """The tags as text and as a set, or an SQL92 expression; what is wrong with it is said now."""
    kind = options.choice("expressionType", (TAG_TYPE, SQL_TYPE), TAG_TYPE)
    expression = options.text("subExpression")
    if kind == SQL_TYPE and expression is None:
        raise OptionError("option expressionType: SQL92 needs a subExpression")
    expression = expression or ALL_MESSAGES
    try:
        if kind == TAG_TYPE:
            return expression, parse_tag_expression("", expression).tags, None
        # Brings the parser, which reads by tags have no need of.
        from aerobee.protocol.filters.sql_filter import compile_sql

        compile_sql(expression)
    except BadRequest as error:
        raise OptionError(f"option subExpression: {error.remark}") from error
    return ALL_MESSAGES, frozenset(), expression


def _offset_spec(options: OptionMap, which: str, otherwise: int) -> OffsetSpec:
    name, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if name in options and timestamp in options:
        raise OptionError(f"options {name} and {timestamp} exclude each other")
    time_ms = options.timestamp_ms(timestamp)
    text = options.text(name)
    if text is None or text.lower() in ("earliest", "latest"):
        if text is not None:
            otherwise = EARLIEST if text.lower() == "earliest" else LATEST
        return OffsetSpec(otherwise, time_ms)
    try:
        offsets = parse_offsets(text)
    except ValueError as error:
        raise OptionError(
            f"option {name} must be earliest, latest or "
            f'{{"topic": {{"broker": {{"0": offset}}}}}}: {error}'
        ) from error
    # A queue that is not named is read whole rather than skipped.
    unnamed = EARLIEST if which == "starting" else LATEST
    return OffsetSpec(unnamed, None, tuple(sorted(offsets.items())))


def _check_batch(start: OffsetSpec, end: OffsetSpec) -> None:
    for name, place, never, word in (
        ("startingOffsets", start, LATEST, "start at latest"),
        ("endingOffsets", end, EARLIEST, "end at earliest"),
    ):
        for queue, offset in place.offsets:
            if offset == never:
                raise OptionError(f"option {name}: {queue} is {never}: a batch cannot {word}")
        if place.otherwise == never:
            raise OptionError(f"option {name}: a batch cannot {word}")


def _check_order(options: OptionMap, start: OffsetSpec, end: OffsetSpec) -> None:
    """What the user gave contradicts itself, whatever the queues have."""
    first_ms, end_ms = start.timestamp_ms, end.timestamp_ms
    if first_ms is not None and end_ms is not None and end_ms < first_ms:
        raise options.wrong("endingTimestamp", "is before startingTimestamp")
    ends = dict(end.offsets)
    for queue, first in start.offsets:
        if 0 <= ends.get(queue, first) < first:
            raise OptionError(
                f"options startingOffsets and endingOffsets: {queue} would begin at {first} and "
                f"end before it, at {ends[queue]}"
            )


def _group(options: OptionMap) -> tuple[str, bool]:
    named = options.text("consumerGroup")
    group = named or options.text("groupIdPrefix", "spark-rocketmq") or ""
    try:
        return check_group_name(group), named is not None
    except BadRequest as error:
        name = "consumerGroup" if named else "groupIdPrefix"
        raise OptionError(f"option {name}: {error.remark}") from error
