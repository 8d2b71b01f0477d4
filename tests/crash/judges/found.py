"""Reads a store after a fault: the messages it serves by its own methods, and the content of its
files."""

from __future__ import annotations

import json
import re
from pathlib import Path

from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetStatus
from tests.crash.judges.history import Found, Queue
from tests.crash.judges.records import Record, read_log, read_queues, records_of

_FOREVER_MS = 1 << 62
#: Folders that recovery must leave alike each time; the other files hold times and counts of runs.
_COMPARED = ("commitlog", "consumequeue")


def pull_all(store: MessageStore, topic: str, queue_id: int) -> list[Record]:
    """Every message of a queue from its first offset on, as a consumer gets them."""
    found: list[Record] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        result = store.reader.get(topic, queue_id, offset, 32, None)
        for view in result.views:
            found += records_of(bytes(view))
        result.release()
        if result.status not in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING):
            return found
        assert result.next_offset > offset, f"{topic}/{queue_id} stands still at {offset}"
        offset = result.next_offset


def look(store: MessageStore, root: Path, keys: int | None = None) -> Found:
    """Everything an open store serves and its files hold; `keys`: look up this number of the
    last."""
    pulled: dict[Queue, list[Record]] = {}
    ranges: dict[Queue, tuple[int, int]] = {}
    for topic, queue_id in store.queues():
        pulled[topic, queue_id] = pull_all(store, topic, queue_id)
        ranges[topic, queue_id] = (
            store.min_offset(topic, queue_id),
            store.max_offset(topic, queue_id),
        )
    log = read_log(root / "commitlog", store.known_gaps)
    wanted = log.records if keys is None else log.records[-keys:] if keys else []
    topics, committed = read_config(root)
    return Found(
        pulled,
        ranges,
        log.start,
        store.written,
        log.records,
        read_queues(root / "consumequeue"),
        _hits(store, wanted),
        len(store.known_gaps),
        topics,
        committed,
    )


def _hits(store: MessageStore, records: list[Record]) -> dict[tuple[str, str], list[int]]:
    hits: dict[tuple[str, str], list[int]] = {}
    for record in records:
        key = record.property("UNIQ_KEY")
        answer = store.search.query(record.topic, key, 10, 0, _FOREVER_MS)
        hits[record.topic, key] = [
            one.log_offset for view in answer.records for one in records_of(bytes(view))
        ]
    return hits


def read_config(root: Path) -> tuple[set[str] | None, dict[Queue, int]]:
    """Topics and committed offsets, from the files or, if one is missing, its backup."""
    topics = _config_json(root / "config" / "topics.json")
    offsets = _config_json(root / "config" / "consumerOffset.json")
    committed: dict[Queue, int] = {}
    for key, queues in (offsets or {}).get("offsetTable", {}).items():
        topic = key.partition("@")[0]
        for queue_id, offset in queues.items():
            committed[topic, int(queue_id)] = max(offset, committed.get((topic, int(queue_id)), 0))
    return (set(topics["topicConfigTable"]) if topics else set()), committed


def _config_json(path: Path) -> dict[str, dict[str, dict[str, int]]] | None:
    for candidate in (path, path.with_name(path.name + ".bak")):
        if candidate.exists() and (text := candidate.read_text()):
            # fastjson's keys may be bare numbers, which JSON does not know.
            return json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))  # type: ignore[no-any-return]
    return None


def files_of(root: Path, folders: tuple[str, ...] = _COMPARED) -> dict[str, bytes]:
    """Contents of the files that a second recovery must leave alike, by path.

    Not of empty ones: whether the segment after next has been made already is a matter of time.
    """
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }
    return {name: data for name, data in files.items() if data.count(0) != len(data)}
