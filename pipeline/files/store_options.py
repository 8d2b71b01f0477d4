"""The options of `format("rocketmq-store")`, typed and checked (docs/pipeline.md lists them).

An option that can be refused without a look at a file is refused here, by name. This module imports
nothing heavy, because Spark asks for the schema in a short process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aerobee.pipeline.decode.columns import STORE_COLUMNS, Column
from aerobee.pipeline.decode.selection import Selection
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.option_map import OptionMap, read_columns

PERMISSIVE, DROP_MALFORMED, FAIL_FAST = "permissive", "dropmalformed", "failfast"
#: A value of decompress: bodies of other compressions than zlib stay as they are.
ZLIB: Final = "zlib"
AUTO, COMMIT_LOG, CONSUME_QUEUE = "auto", "commitlog", "consumequeue"

#: Every option there is; `paths` is what Spark makes of `load([...])`.
KNOWN: Final = (
    "path", "paths", "topic", "queueId", "startTimestamp", "endTimestamp", "startOffset",
    "endOffset", "use", "splitBytes", "mode", "checkCrc", "columns", "propertiesFormat",
    "keysFormat", "decompress", "resolveTopics", "mapped", "pushdown",
)  # fmt: skip
_ORIGIN: Final = "originTopic"
_INT_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a read.

    `paths`: store roots and commit log directories; `selection`: topics, queues, store times, log
    offsets (`startOffset` and `endOffset` are positions in the commit log, as in the column
    `commitLogOffset`); `use`: auto, commitlog or consumequeue; `mode`: what becomes of bad records;
    `properties`: map, json or raw; `only_zlib`: which bodies `decompress` is for.
    """

    paths: tuple[str, ...]
    selection: Selection
    use: str
    split_bytes: int
    mode: str
    check_crc: bool
    columns: tuple[Column, ...]
    properties: str
    decompress: bool
    only_zlib: bool
    mapped: bool
    pushdown: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> StoreOptions:
        """Raises OptionError, naming the option."""
        options = OptionMap(given, KNOWN)
        properties = options.choice("propertiesFormat", ("map", "json", "raw"), "map")
        only_zlib = (options.text("decompress") or "").lower() == ZLIB
        return cls(
            paths=_paths(options),
            selection=_selection(options),
            use=options.choice("use", (AUTO, COMMIT_LOG, CONSUME_QUEUE), AUTO),
            split_bytes=options.size("splitBytes", 128 << 20, minimum=256),
            mode=options.choice("mode", (PERMISSIVE, DROP_MALFORMED, FAIL_FAST), PERMISSIVE),
            check_crc=options.boolean("checkCrc", False),
            columns=_columns(options, properties),
            properties=properties,
            decompress=only_zlib or options.boolean("decompress", True),
            only_zlib=only_zlib,
            mapped=options.boolean("mapped", False),
            pushdown=options.boolean("pushdown", False),
        )


def _paths(options: OptionMap) -> tuple[str, ...]:
    given = options.given(("path", "paths"))
    if not given:
        raise OptionError("option path is required: a store's directory, load(path) or a list")
    found: list[str] = []
    for name in given:
        text = options.required(name)
        try:
            listed = json.loads(text) if text.startswith("[") else text.split(",")
        except ValueError as error:
            raise options.wrong(name, f"is no JSON list: {error}") from None
        found += [str(one).strip() for one in listed]
    if not all(found):
        raise OptionError("option path has an empty place in its list")
    twice = [path for path in found if found.count(path) > 1]
    if twice:
        raise OptionError(f"option path has {twice[0]!r} twice")
    return tuple(found)


def _selection(options: OptionMap) -> Selection:
    topics = options.names("topic")
    queue_ids = options.names("queueId")
    if queue_ids is not None and not all(one.isdecimal() for one in queue_ids):
        raise options.wrong("queueId", "is no queue id, nor a list of them")
    selection = Selection(
        None if topics is None else frozenset(topics),
        None if queue_ids is None else frozenset(min(int(one), _INT_MAX) for one in queue_ids),
        options.timestamp_ms("startTimestamp"),
        options.timestamp_ms("endTimestamp"),
        options.integer("startOffset", None),
        options.integer("endOffset", None),
    )
    _in_order(options, "startTimestamp", selection.start_ms, "endTimestamp", selection.end_ms)
    _in_order(options, "startOffset", selection.start_offset, "endOffset", selection.end_offset)
    return selection


def _in_order(
    options: OptionMap, start_name: str, start: int | None, end_name: str, end: int | None
) -> None:
    if start is not None and end is not None and end < start:
        raise options.wrong(end_name, f"is before {start_name}")


def _columns(options: OptionMap, properties: str) -> tuple[Column, ...]:
    chosen = read_columns(options, STORE_COLUMNS, properties)
    names = {column.name for column in chosen}
    if options.boolean("resolveTopics", False) and _ORIGIN not in names:
        chosen += tuple(column for column in STORE_COLUMNS if column.name == _ORIGIN)
    return chosen
