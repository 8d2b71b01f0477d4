"""The options of the topic source: typed, checked against each other, before a broker is asked.

Rules that differ between batch and stream are those shared by Spark's Kafka source and RocketMQ's
own connector: a stream starts at the latest message, a batch reads from the earliest to the latest;
a batch neither starts at latest nor ends at earliest; a stream has no end.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aerobee.pipeline.brokers.broker_options import (
    ACCESS_OPTIONS,
    Access,
    read_access,
    topic_options,
)
from aerobee.pipeline.brokers.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    Queue,
    parse_assign,
    parse_offsets,
    parse_times,
)
from aerobee.pipeline.decode.columns import HEADERS, KEYS, PROPERTIES, TOPIC_COLUMNS, Column
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.foreign_options import source_word
from aerobee.pipeline.option_map import OptionMap, read_columns
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import (
    EXPRESSION_TYPES,
    TAG_TYPE,
    TypedExpression,
    compile_expression,
)
from aerobee.protocol.filters.subscription import ALL_MESSAGES, parse_tag_expression
from aerobee.protocol.names import check_group_name

log = logging.getLogger("aerobee.pipeline")

_KINDS: Final = ("Offsets", "Timestamp", "OffsetsByTimestamp")
_WHAT: Final = ("topic", "subscribe", "subscribePattern", "assign")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_STREAM_ONLY: Final = ("startStateLocation", "commitOffsetsToBroker")
_TRIGGER_DELAY_MS: Final = 15 * 60_000
SOURCE_OPTIONS: Final = (
    *ACCESS_OPTIONS, *_WHAT, "subExpression", "expressionType",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", _STRATEGY, *_ENDS,
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss",
    "consumerGroup", "groupIdPrefix", *_STREAM_ONLY, "pullBatchSize", "pullTimeoutMs",
    "columns", "propertiesFormat", "keysFormat", "decompress", "includeSystemProperties",
    "includeHeaders", "pushdown",
)  # fmt: skip

# No tag that anybody has is likely to be written so.
_LIKE_SQL: Final = re.compile(r"[<>=]|\s(AND|OR|IN|BETWEEN|IS|NOT)\s", re.IGNORECASE)
#: Options that say how a column is to look.
_FORMS: Final = {
    "propertiesFormat": PROPERTIES, "includeSystemProperties": PROPERTIES, "keysFormat": KEYS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """The place where reading starts or ends: an end of each queue, a time, or given offsets.

    `offsets` may hold EARLIEST and LATEST, `times` are in ms; what they do not name is at
    `otherwise`. A queue that has no message at or after its time is at its end, or refused where
    there `must_be_one`. `option` gave the offsets or times.
    """

    otherwise: int = EARLIEST
    timestamp_ms: int | None = None
    offsets: tuple[tuple[Queue, int], ...] = ()
    times: tuple[tuple[Queue, int], ...] = ()
    must_be_one: bool = False
    option: str = field(default="", compare=False)

    @property
    def moves(self) -> bool:
        """Whether resolving it later gives something else, messages left out."""
        named = [offset for _, offset in self.offsets]
        by_time = self.timestamp_ms is not None or bool(self.times)
        return by_time or LATEST in (self.otherwise, *named)


class BatchLimits(NamedTuple):
    """The limits of a micro-batch: the most messages and bytes, and the fewest messages, for which
    it waits `delay_s` at most."""

    most_rows: int | None = None
    most_bytes: int | None = None
    least_rows: int | None = None
    delay_s: float = _TRIGGER_DELAY_MS / 1000

    @property
    def are_set(self) -> bool:
        """Whether there is any."""
        return bool(self.most_rows or self.most_bytes or self.least_rows)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of one read; see the table in the manual of the pipeline."""

    access: Access
    topics: tuple[str, ...]
    pattern: str | None
    assigned: frozenset[Queue] | None
    expression: str  # the tags, for the broker
    tags: frozenset[str]
    condition: TypedExpression | None  # evaluated here
    start: OffsetSpec
    end: OffsetSpec
    limits: BatchLimits
    min_partitions: int | None
    partition_rows: int | None  # the most messages of a partition
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
    options = topic_options(given, SOURCE_OPTIONS, source_word)
    topics, pattern, assigned = _what(options)
    expression, tags, condition = _expression(options)
    if streaming is not None and condition is None and _LIKE_SQL.search(expression):
        # Not for the schema as well, which is asked for first.
        log.warning(
            "option subExpression: %r is read as tags, though it looks like a condition: "
            "expressionType=SQL92 makes it one", expression,
        )  # fmt: skip
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
        limits=_limits(options),
        min_partitions=options.integer("minPartitions", None, 1, 1_000_000),
        partition_rows=options.integer("maxRecordsPerPartition", None, 1),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        group=group,
        has_group=has_group,
        commit_offsets=commit,
        start_state_location=options.text("startStateLocation"),
        pull_batch=options.integer("pullBatchSize", None, 1, 1_000_000),
        columns=_columns(options, text_form),
        properties_format=text_form,
        decompress=options.boolean("decompress", True),
        system_properties=options.boolean("includeSystemProperties", False),
        pushdown=options.boolean("pushdown", False),
    )


def _limits(options: OptionMap) -> BatchLimits:
    most, least = (options.integer(f"{one}OffsetsPerTrigger", None, 1) for one in ("max", "min"))
    if most is not None and least is not None and most < least:
        raise options.wrong("maxOffsetsPerTrigger", "is less than minOffsetsPerTrigger")
    if "maxTriggerDelay" in options and least is None:
        raise OptionError("option maxTriggerDelay is for minOffsetsPerTrigger, which is not given")
    delay_ms = options.duration_ms("maxTriggerDelay", _TRIGGER_DELAY_MS)
    most_bytes = options.size("maxBytesPerTrigger", 0) or None
    return BatchLimits(most, most_bytes, least, delay_ms / 1000)


def _columns(options: OptionMap, properties_format: str) -> tuple[Column, ...]:
    """The columns asked for; who says how properties or keys are to look asks for them as well."""
    more = {HEADERS} if options.boolean("includeHeaders", False) else set()
    if "columns" not in options:
        more |= {column for option, column in _FORMS.items() if option in options}
    return read_columns(options, TOPIC_COLUMNS, properties_format, more)


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


def _expression(options: OptionMap) -> tuple[str, frozenset[str], TypedExpression | None]:
    """The tags as text and as a set, or an expression over properties, which is checked now."""
    kind = options.choice("expressionType", (TAG_TYPE, *EXPRESSION_TYPES), TAG_TYPE)
    expression = options.text("subExpression")
    if kind != TAG_TYPE and expression is None:
        raise OptionError(f"option expressionType: {kind} needs a subExpression")
    expression = expression or ALL_MESSAGES
    try:
        if kind == TAG_TYPE:
            return expression, parse_tag_expression("", expression).tags, None
        condition = kind, expression
        compile_expression(condition)
    except BadRequest as error:
        raise OptionError(f"option subExpression: {error.remark}") from error
    return ALL_MESSAGES, frozenset(), condition


def _offset_spec(options: OptionMap, which: str, otherwise: int) -> OffsetSpec:
    name, timestamp, by_queue = (f"{which}{kind}" for kind in _KINDS)
    if len(given := options.given((name, timestamp, by_queue))) > 1:
        raise OptionError(f"options {' and '.join(given)} exclude each other")
    must_be_one = which == "starting" and _must_be_one(options, (timestamp, by_queue))
    # A queue that is not named is read whole rather than skipped.
    unnamed = EARLIEST if which == "starting" else LATEST
    if by_queue in options:
        times = _by_queue(options, by_queue, "time", parse_times)
        return OffsetSpec(unnamed, times=times, must_be_one=must_be_one, option=by_queue)
    time_ms = options.timestamp_ms(timestamp)
    text = options.text(name)
    if text is None or text.lower() in ("earliest", "latest"):
        if text is not None:
            otherwise = EARLIEST if text.lower() == "earliest" else LATEST
        return OffsetSpec(otherwise, time_ms, must_be_one=must_be_one)
    offsets = _by_queue(options, name, "offset", parse_offsets, "earliest, latest or ")
    return OffsetSpec(unnamed, offsets=offsets, option=name)


def _by_queue(
    options: OptionMap, name: str, unit: str, parse: Callable[[str], Offsets], words: str = ""
) -> tuple[tuple[Queue, int], ...]:
    try:
        return tuple(sorted(parse(options.text(name) or "").items()))
    except ValueError as error:
        raise OptionError(
            f'option {name} must be {words}{{"topic": {{"broker": {{"0": {unit}}}}}}}: {error}'
        ) from error


def _must_be_one(options: OptionMap, times: Iterable[str]) -> bool:
    """Whether a queue without a message at or after its time is refused."""
    if _STRATEGY in options and not options.given(times):
        raise OptionError(f"option {_STRATEGY} is for {' and '.join(times)}, neither is given")
    return options.choice(_STRATEGY, ("latest", "error"), "latest") == "error"


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
    """Refuse a start after the end, which no queue can have."""
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
