"""Derives from a record of the log its entries in consume queues, and its keys in the index.

This is the only plain place that knows them; `native/derive.pyx` is its compiled form. Dispatch of
records read from the log, recovery, rebuild, the scrub, the audit and Spark's jobs ask here; the
append, which has the message at hand, makes the same entries itself (`log/commit_log.py`), and a
test compares both.

A message has an entry in its own queue, with the hash of its tags; a message that waits for its
delay has the delivery time there. A multi-dispatched message has further entries, in the queues
that its properties list with the numbers it has there (store/FORMAT.md 2.8). Half messages have
keys only, rollbacks nothing at all.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from aerobee.protocol.hashing import tag_code
from aerobee.protocol.message.properties import decode_properties, further_queues, tags_and_keys
from aerobee.protocol.message.record_check import Checked
from aerobee.protocol.message.record_layout import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from aerobee.protocol.names import WAITING_TOPICS
from aerobee.store.queues.delay_levels import DelayLevels
from aerobee.store.queues.queue_view import ENTRY
from aerobee.store.queues.slots import OFFSETS_MARK

#: The form in which a reader knows a queue: the queue itself, or its topic and queue id.
Q = TypeVar("Q")
#: Like `Appended` of the commit log: queue (None: no entry), queue offset, log offset, size, tags
#: code, keys, store time, topic.
Entry: TypeAlias = tuple[Q | None, int, int, int, int, tuple[str, ...], int, str]

_pack_entry = ENTRY.pack


@dataclass(frozen=True)
class Derivation(Generic[Q]):
    """Makes entries of records.

    `missing` gives a queue that is not in `known` (by topic and queue id), and `listed` gives a
    further queue by its name and the message's own queue id. None is a queue that gets no entry;
    without `listed` no message has further entries.
    """

    known: Mapping[tuple[str, int], Q]
    missing: Callable[[str, int], Q | None]
    listed: Callable[[str, int], Q | None] | None
    levels: DelayLevels

    def entries(self, records: Iterable[Checked]) -> list[Entry[Q]]:
        """The entries of sound records, in order; further entries of a message follow its own."""
        found: list[Entry[Q]] = []
        known, listed = self.known, self.listed
        for record in records:
            log_offset, size, queue_id, queue_offset, sys_flag, store_ms, topic = record[:7]
            text = record[-1]
            tags, keys = tags_and_keys(text)
            tags_code = tag_code(tags) if tags else 0
            transaction = sys_flag & SYS_TRANSACTION_MASK
            queue: Q | None = None
            if not transaction & SYS_TRANSACTION_PREPARED:
                queue = known.get((topic, queue_id)) or self.missing(topic, queue_id)
                if topic in WAITING_TOPICS:
                    properties = decode_properties(text)
                    tags_code = self.levels.tags_code(topic, properties, store_ms, tags_code)
                if queue is not None:
                    found.append(
                        (queue, queue_offset, log_offset, size, tags_code, keys, store_ms, topic)
                    )
                if listed is not None and OFFSETS_MARK in text:
                    found += self._further(record, queue, tags_code)
                continue
            if transaction == SYS_TRANSACTION_ROLLBACK:
                keys = ()
            found.append((None, queue_offset, log_offset, size, tags_code, keys, store_ms, topic))
        return found

    def _further(self, record: Checked, own: Q | None, tags_code: int) -> list[Entry[Q]]:
        assert self.listed is not None
        log_offset, size, queue_id, _, _, store_ms, *_, text = record
        found: list[Entry[Q]] = []
        known = {own, None}
        for name, queue_offset in further_queues(decode_properties(text)):
            other = self.listed(name, queue_id)
            if other not in known:
                known.add(other)
                found.append((other, queue_offset, log_offset, size, tags_code, (), store_ms, name))
        return found


def keys_of(sys_flag: int, properties: bytes) -> tuple[str, ...]:
    """The keys that a sound record is indexed under, by its sysFlag and its stored properties."""
    if sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
        return ()
    return tags_and_keys(properties)[1]


def by_queue(entries: Iterable[Entry[Q]]) -> dict[Q, tuple[list[int], list[bytes]]]:
    """Queue offsets, and the bytes of the entries there, of each queue in the order of the log."""
    found: dict[Q, tuple[list[int], list[bytes]]] = {}
    for queue, queue_offset, log_offset, size, tags_code, _, _, _ in entries:
        if queue is not None:
            known = found.get(queue)
            if known is None:
                known = found[queue] = ([], [])
            known[0].append(queue_offset)
            known[1].append(_pack_entry(log_offset, size, tags_code))
    return found
