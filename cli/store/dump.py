"""`aerobee store dump`: the content of the files, a line for each entry for people, JSON lines for
scripts."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from aerobee.cli.printing.output import (
    OK,
    USAGE,
    CommandFailed,
    body_fields,
    body_text,
    print_json,
    say,
    show,
)
from aerobee.cli.printing.times import parse_time, time_text
from aerobee.cli.store.opened import below, locked_to_read, on_store, settings_of
from aerobee.config.model import Settings
from aerobee.protocol.message.compression import is_compressed
from aerobee.protocol.names import WAITING_TOPICS
from aerobee.remoting.peers import address_text
from aerobee.store.at_rest.audit.dump import (
    FOREVER,
    Dump,
    DumpedEntry,
    DumpedIndexFile,
    DumpedMessage,
    DumpedQueue,
    DumpedQueueEntry,
    DumpFilter,
)
from aerobee.store.disk.files import Files
from aerobee.store.inspect.state import read_checkpoint
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.log.scan.sequence import Gap

_BODY_SHOWN: Final = 200
_CHECKPOINT: Final = ("commit_log_ms", "consume_queues_ms", "index_ms")

Item = DumpedMessage | Gap | DumpedQueueEntry | DumpedQueue | DumpedEntry | DumpedIndexFile


@on_store
def dump_messages(parsed: argparse.Namespace) -> int:
    """Messages of the log, in its order."""
    return _listing(parsed, Dump.messages)


@on_store
def dump_queues(parsed: argparse.Namespace) -> int:
    """Entries of the consume queues, or a line for each queue."""
    return _listing(parsed, Dump.queues if parsed.summary else Dump.queue_entries)


@on_store
def dump_index(parsed: argparse.Namespace) -> int:
    """Entries of the index files, or a line for each file."""
    if parsed.summary:
        return _listing(parsed, lambda dump, _: dump.index_files())
    return _listing(parsed, Dump.entries)


def _listing(
    parsed: argparse.Namespace, items: Callable[[Dump, DumpFilter], Iterable[Item]]
) -> int:
    filters = filters_of(parsed)
    settings, given = settings_of(parsed)
    show = _json if parsed.json else _text
    left = parsed.limit
    with locked_to_read(settings), contextlib.closing(Dump(settings, given)) as dump:
        for item in items(dump, filters):
            if left == 0:
                say(f"{parsed.limit} shown, there is more (--limit)")
                break
            show(item, parsed, settings)
            left -= 1
    if left == parsed.limit:
        say("nothing there, or nothing that fits what was asked for")
    return OK


def filters_of(parsed: argparse.Namespace) -> DumpFilter:
    """The filters; those that a listing does not have are not set."""
    given = {name: value for name, value in vars(parsed).items() if value is not None}
    if "key" in given and parsed.command == "store dump index" and not parsed.topic:
        raise CommandFailed("--key needs --topic: the index knows hashes of topic#key", USAGE)
    return DumpFilter(
        given.get("topic"),
        given.get("queue"),
        given.get("from_offset", 0),
        given.get("to_offset", FOREVER),
        given.get("from_log", 0),
        given.get("to_log", FOREVER),
        parse_time(given["begin"]) if "begin" in given else 0,
        parse_time(given["end"]) if "end" in given else FOREVER,
        given.get("key"),
    )


# Text


def _text(item: Item, parsed: argparse.Namespace, settings: Settings) -> None:
    root = settings.store_path
    if isinstance(item, DumpedMessage):
        line = _message_text(item, parsed.body)
    elif isinstance(item, Gap):
        line = f"DAMAGED  {item.end - item.start} bytes from {item.start} to {item.end}: " + (
            item.reason
        )
    elif isinstance(item, DumpedQueueEntry):
        line = _entry_text(item)
    elif isinstance(item, DumpedQueue):
        line = (
            f"{item.topic}/{item.queue_id}  slots {item.first} to {item.end}  {item.files} files  "
            f"log offsets {_or_none(item.first_log_offset)} to {_or_none(item.last_log_offset)}"
        )
    elif isinstance(item, DumpedEntry):
        line = (
            f"{below(root, item.path)} {item.number}  hash {item.key_hash}  slot {item.slot}  log "
            f"{item.log_offset}  {time_text(item.time_ms)}  before {item.previous}"
            f"{'' if item.state == 'entry' else '  DAMAGED'}"
        )
    else:
        line = (
            f"{below(root, item.path)}  {item.entries} entries  {item.used_slots} slots  log "
            f"offsets {item.begin_log_offset} to {item.end_log_offset}  "
            f"{time_text(item.begin_ms)} to {time_text(item.end_ms)}"
        )
    show(line)


def _message_text(item: DumpedMessage, body: str) -> str:
    message, kind = item
    parts = [
        time_text(message.store_timestamp_ms),
        f"{message.topic}/{message.queue_id}@{message.queue_offset}",
        f"log {message.log_offset}+{message.size}",
    ]
    if kind != "message":
        parts.append(kind)
    if message.tags:
        parts.append(f"[{message.tags}]")
    if message.keys:
        parts.append(f"({' '.join(message.keys)})")
    if is_compressed(message.sys_flag):
        parts.append("compressed")
    parts.append(_body(message.body, body))
    return "  ".join(parts)


def _body(body: bytes, form: str) -> str:
    if form == "length":
        return f"{len(body)} bytes"
    if form == "hex":
        return body.hex()
    return body_text(body, _BODY_SHOWN if form == "short" else sys.maxsize)


def _entry_text(item: DumpedQueueEntry) -> str:
    tags = f"tags {item.tags_code}"
    if item.topic in WAITING_TOPICS and item.tags_code > 0:
        tags = f"due {time_text(item.tags_code)}"
    where = f"{item.topic}/{item.queue_id}@{item.queue_offset}"
    if item.state in ("lost", "empty"):
        return f"{where}  {item.state}"
    state = "" if item.state == "message" else f"  {item.state}"
    if item.state not in ("message", "deleted"):
        state = f"  DAMAGED {item.state}"
    return f"{where}  log {item.log_offset}+{item.size}  {tags}{state}"


def _or_none(value: int | None) -> str:
    return "-" if value is None else str(value)


# JSON


def _json(item: Item, parsed: argparse.Namespace, _settings: Settings) -> None:
    if isinstance(item, DumpedMessage):
        fields = _message_fields(item, parsed.body)
    elif isinstance(item, Gap):
        fields = {"kind": "damaged", **item._asdict()}
    else:
        fields = item._asdict()
    print_json(fields, compact=True)


def _message_fields(item: DumpedMessage, body: str) -> dict[str, Any]:
    message, kind = item
    fields: dict[str, Any] = {
        "kind": kind,
        "log_offset": message.log_offset,
        "record_bytes": message.size,
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "offset_msg_id": message.msg_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": message.properties,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": address_text(message.born_host),
        "store_timestamp_ms": message.store_timestamp_ms,
        "store_host": address_text(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "compressed": is_compressed(message.sys_flag),
        "body_bytes": len(message.body),
    }
    if body == "hex":
        fields["body_hex"] = message.body.hex()
    elif body != "length":
        fields |= body_fields(message.body)
    return fields


# The state


@on_store
def dump_checkpoint(parsed: argparse.Namespace) -> int:
    """Checkpoint, offsets file and how the last run ended."""
    settings, _ = settings_of(parsed)
    files, root = Files(), settings.store_path
    with locked_to_read(settings):
        store = StoreFiles(files, settings)
        times = read_checkpoint(files, root)
    marks, known = store.marks, store.marks.offsets
    fields: dict[str, Any] = {
        "directory": root,
        "checkpoint": None if times is None else dict(zip(_CHECKPOINT, times, strict=True)),
        "offsets_file": "damaged" if marks.damaged else "absent" if known is None else "whole",
        "offsets_are_ours": marks.ours,
        "left_open": store.left_open,
    }
    if known is not None:
        fields |= {
            "flushed": known.flushed,
            "last_store_ms": known.last_store_ms,
            "synced_to": known.synced.log_offset,
            "dispatched_to": known.live.log_offset,
            "units": known.live.entries,
            "indexed_to": known.indexed,
            "gaps": [list(gap) for gap in known.gaps],
            "poisoned": known.poisoned,
        }
    if parsed.json:
        print_json(fields)
        return OK
    for name, time_ms in (fields.pop("checkpoint") or {}).items():
        show(f"checkpoint {name.removesuffix('_ms').replace('_', ' '):<20} {_time(time_ms)}")
    for name, value in fields.items():
        shown = _time(value) if name.endswith("_ms") else value
        show(f"{name.replace('_', ' '):<31} {shown!s}")
    return OK


def _time(time_ms: int) -> str:
    return f"{time_ms}  {time_text(time_ms)}".rstrip()
