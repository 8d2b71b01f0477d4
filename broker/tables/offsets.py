"""Consumer offsets: how far each group has come in each queue (`config/consumerOffset.json`).

The value is the next queue offset to consume. Offsets may move back (a group is reset by its
clients); one beyond the queue's end is refused and logged, because a consumer that skips messages
not yet written would lose them (docs/reliability.md 8, "offsets from clients"). Groups that only
keep where a stream began (START_GROUP_SUFFIX) have offsets one higher than meant, and skip nothing;
their 0 means that nothing is kept.

A first offset of a group in a queue is taken only if the topic has that queue, the group exists or
may be made, and there is room (`Admission`): each entry takes memory, and a part of every save.
RocketMQ takes what it is sent.

Changed in memory at once, written by housekeeping and at stop: a worker makes the text from what
has changed (`offsets_text.py`), the loop only notes that. Loop thread only, but for `save`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Protocol

from aerobee.broker.tables.files.offsets_text import (
    Changes,
    DocumentText,
    Pair,
    TableText,
    offset_key,
    parse_key,
    queues_text,
    rescued_offsets,
)
from aerobee.broker.tables.files.state_file import JsonStateFile, members, read_document
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.frames.fastjson import quote
from aerobee.protocol.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    START_GROUP_SUFFIX,
    TRANSACTION_GROUP,
    check_group_name,
    check_topic_name,
    is_valid_group_name,
    is_valid_topic_name,
)
from aerobee.store.disk.owner import OnOwner

log = logging.getLogger("aerobee.broker.offsets")

NO_OFFSET = -1
_BEYOND_LOGGED = 20
_MOST_OFFSET = 1 << 63
# The size of a step: pairs that are forgotten, or pairs and queues whose JSON is made, counted
# together; some microseconds each.
STEP = 64

_OF_TRANSACTIONS = (HALF_TOPIC, OP_HALF_TOPIC)

OffsetTable = dict[Pair, dict[int, int]]

#: Why a first offset is not taken, "" if it is: of (group, topic, queue id, offsets of its kind).
Admit = Callable[[str, str, int, int], str]


def admit_all(_group: str, _topic: str, _queue_id: int, _count: int, /) -> str:
    """The rule of a table that stands alone."""
    return ""


class Admission:
    """Which first offsets of groups in queues are taken. Loop thread only."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, *, offsets: int, start_offsets: int
    ) -> None:
        """`offsets` and `start_offsets` are the most of both kinds."""
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._start_offsets = start_offsets

    def __call__(self, group: str, topic: str, queue_id: int, count: int, /) -> str:
        """Do as `Admit` says, and make the group if that is allowed. Raises `BadRequest` for an
        illegal name."""
        if group == TRANSACTION_GROUP and topic in _OF_TRANSACTIONS:
            # The broker's own: neither the group nor the op topic is in a table.
            return ""
        config = self._topics.get(topic)
        if config is None:
            return f"there is no topic {topic}"
        queues = max(config.read_queues, config.write_queues)
        if queue_id >= queues:
            return f"the topic {topic} has queues 0 to {queues - 1}, not {queue_id}"
        if is_start_group(group):
            if count >= self._start_offsets:
                return (
                    f"there are {count} starts of streams, the limit; delete groups named *-start"
                )
            return ""
        if count >= self._offsets:
            return f"there are {count} consumer offsets, the limit; delete groups not in use"
        if self._groups.get(group) is None:
            return f"there is no consumer group {group}, and it may not be made"
        return ""


def is_start_group(group: str) -> bool:
    """Whether this is the name of no group, but of the place where a stream began."""
    return group.endswith(START_GROUP_SUFFIX)


class PairIndex:
    """The topics of each group and the groups of each topic, of a table by (topic, group)."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        # The values mean nothing; unlike sets these keep the order.
        self._topics: dict[str, dict[str, None]] = {}
        self._groups: dict[str, dict[str, None]] = {}
        for pair in pairs:
            self.add(pair)

    def add(self, pair: Pair) -> None:
        topic, group = pair
        self._topics.setdefault(group, {})[topic] = None
        self._groups.setdefault(topic, {})[group] = None

    def discard(self, pair: Pair) -> None:
        topic, group = pair
        for table, name, member in ((self._topics, group, topic), (self._groups, topic, group)):
            members_of = table.get(name, {})
            members_of.pop(member, None)
            if not members_of:
                table.pop(name, None)

    def topics(self) -> list[str]:
        return list(self._groups)

    def topics_of(self, group: str) -> list[str]:
        return list(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        return list(self._groups.get(topic, ()))


class ConsumerOffsets:
    """Offsets by (topic, group) and queue id. `max_offset(topic, queue)` is the queue's end."""

    def __init__(
        self, file: JsonStateFile, max_offset: Callable[[str, int], int], admit: Admit = admit_all
    ) -> None:
        self._file = file
        self._max_offset = max_offset
        self._admit = admit
        self._table = self._load(file)
        self._are_lost = file.is_lost or bool(file.set_aside())
        self._index = PairIndex(self._table)
        self._start_count = sum(
            len(queues) for (_, group), queues in self._table.items() if is_start_group(group)
        )
        self._count = sum(map(len, self._table.values())) - self._start_count
        self._queues_text = TableText("offsetTable", self._table, queues_text)
        self._text = self._document_text()
        if file.is_lost:
            # The rescued offsets are in no file yet.
            self._queues_text.changed.update(dict.fromkeys(self._table))
        # One save at a time: the text is made in parts that the last one left.
        self._saving = threading.Lock()
        self._taken: Changes = []
        self.refused = 0
        #: Moves with each change: a slave of this broker looks at it first.
        self.state = 0
        self._warn_of_offsets_beyond()

    def _warn_of_offsets_beyond(self) -> None:
        """Log the groups whose offsets their queues have not reached: after a loss of messages, or
        with a restored store beside newer offsets. They get nothing until the queue gets there."""
        beyond = [
            (group, topic, queue_id, offset, end)
            for (topic, group), queues in self._table.items()
            for queue_id, offset in queues.items()
            if offset > (end := self._max_offset(topic, queue_id)) + is_start_group(group)
        ]
        for one in beyond[:_BEYOND_LOGGED]:
            log.warning(
                "consumer offset beyond its queue group=%s topic=%s queue=%d offset=%d "
                "queue_end=%d advice=reset the group there, or it misses what comes up to it",
                *one,
                extra={"each": True},
            )
        if len(beyond) > _BEYOND_LOGGED:
            log.warning("and more of them count=%d", len(beyond) - _BEYOND_LOGGED)

    def _document_text(self) -> DocumentText:
        return DocumentText(self._queues_text)

    def _load(self, file: JsonStateFile) -> OffsetTable:
        return file.load(lambda content: parse_table(read_document(content)), {}, rescued_offsets)

    @property
    def are_lost(self) -> bool:
        """Whether offsets were lost with a damaged file that is still kept aside. A group without
        an offset may be one of those, and is to begin with the first message there is: what it gets
        again it can tell, what it is led past it would never see."""
        return self._are_lost

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit as `try_commit` does; return whether the offset was set."""
        return not self.try_commit(group, topic, queue_id, offset)

    def try_commit(self, group: str, topic: str, queue_id: int, offset: int) -> str:
        """Set a group's next offset in a queue; why it is refused, "" when it was not.

        Raises `BadRequest` for a name that could not stand in the file.
        """
        pair = (topic, group)
        queues = self._table.get(pair)
        known = queues.get(queue_id) if queues is not None else None
        if known == offset:
            return ""
        is_start = group.endswith(START_GROUP_SUFFIX)
        if offset < 0 or queue_id < 0 or offset > self._max_offset(topic, queue_id) + is_start:
            return self._refuse_beyond(group, topic, queue_id, offset)
        if is_start and not offset:
            self._forget(pair, queue_id)
            return ""
        if known is None:
            pair = (check_topic_name(topic), check_group_name(group))
            count = self._start_count if is_start else self.count()
            if why := self._admit(group, topic, queue_id, count):
                return self._refuse(group, topic, queue_id, offset, why)
            if queues is None:
                queues = self._table[pair] = {}
                self._index.add(pair)
            self._add_count(is_start, 1)
        assert queues is not None
        queues[queue_id] = offset
        self.state += 1
        self._queues_text.changed[pair] = None
        return ""

    @property
    def starts(self) -> int:
        """How many there are of where streams began."""
        return self._start_count

    def count(self) -> int:
        """How many offsets there are that are no starts."""
        return self._count

    def _add_count(self, is_start: bool, count: int) -> None:
        if is_start:
            self._start_count += count
        else:
            self._count += count

    def _forget(self, pair: Pair, queue_id: int) -> None:
        """Forget the offset of a queue, if it has an offset."""
        queues = self._table.get(pair, {})
        if len(queues) == 1 and queue_id in queues:
            self._forget_pair(pair)
        elif queues.pop(queue_id, None) is not None:
            self._add_count(is_start_group(pair[1]), -1)
            self.state += 1
            self._queues_text.changed[pair] = None

    def _forget_pair(self, pair: Pair) -> None:
        queues = self._table.pop(pair, None)
        if queues is not None:
            self._index.discard(pair)
            self._add_count(is_start_group(pair[1]), -len(queues))
            self.state += 1
            self._queues_text.changed[pair] = None

    # --- copies of a master's offsets ------------------------------------------------------------

    def put(self, group: str, topic: str, queues: Mapping[int, int]) -> None:
        """Have a group be there in a topic, by queue id, and nowhere else in it: as its master
        says. On a slave only; the names are legal."""
        pair = (topic, group)
        known = self._table.get(pair)
        if known == queues:
            return
        self._forget_pair(pair)
        if queues:
            self._table[pair] = dict(queues)
            self._index.add(pair)
            self._add_count(is_start_group(group), len(queues))
            self.state += 1
            self._queues_text.changed[pair] = None

    def all_pairs(self) -> list[Pair]:
        """All (topic, group) that have offsets, light groups among them."""
        return list(self._table)

    @staticmethod
    def read(content: bytes) -> OffsetTable:
        """The offsets of the answer to GET_ALL_CONSUMER_OFFSET, light ones among them. Names that
        are not legal here, and offsets below 0, which clients of RocketMQ commit, are left out.
        Raises ValueError, KeyError, TypeError. Any thread."""
        document = members(read_document(content))
        table = parse_table(document)
        for key, offset in members(document.get("lmqOffsetTable") or {}).items():
            table[parse_key(key)] = {0: int(offset)}
        return {
            pair: usable
            for pair, queues in table.items()
            if is_valid_topic_name(pair[0]) and is_valid_group_name(pair[1])
            if (usable := {n: at for n, at in queues.items() if n >= 0 and 0 <= at < _MOST_OFFSET})
        }

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """A group's next offset in a queue, `NO_OFFSET` when it never committed one."""
        queues = self._table.get((topic, group))
        return NO_OFFSET if queues is None else queues.get(queue_id, NO_OFFSET)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """All offsets of a group in a topic, by queue id."""
        return self._table.get((topic, group), {})

    def pairs(self) -> list[tuple[str, str]]:
        """All (topic, group) that have offsets here."""
        return list(self._table)

    def tables(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """((topic, group), offsets by queue id) of all; the offsets go on changing."""
        return list(self._table.items())

    def topics_of(self, group: str) -> list[str]:
        return self._index.topics_of(group)

    def groups_of(self, topic: str) -> list[str]:
        return self._index.groups_of(topic)

    def remove_group(self, group: str) -> Generator[None, None, None]:
        """Forget all offsets of a group, in steps."""
        for number, topic in enumerate(self._index.topics_of(group), 1):
            self._forget_pair((topic, group))
            if number % STEP == 0:
                yield None

    def remove_topic(self, topic: str) -> Generator[None, None, None]:
        """Forget the offsets of all groups in a topic, in steps: one made anew under its name has
        others, and may be made when that is done."""
        for number, group in enumerate(self._index.groups_of(topic), 1):
            self._forget_pair((topic, group))
            if number % STEP == 0:
                yield None

    def remove_topics_gone(self, is_there: Callable[[str], bool]) -> None:
        """Forget the offsets of topics that are not there. RocketMQ keeps those of deleted ones,
        and takes what anybody commits."""
        gone = [topic for topic in self._topics_with_offsets() if not is_there(topic)]
        for topic in gone:
            for _ in self.remove_topic(topic):
                pass
        if gone:
            log.info("offsets of topics that are gone removed topics=%d", len(gone))

    def _topics_with_offsets(self) -> set[str]:
        return set(self._index.topics())

    def all(self) -> dict[str, dict[int, int]]:
        """The table as RocketMQ names it: `topic@group` -> queue id -> offset."""
        return {
            offset_key(topic, group): dict(queues) for (topic, group), queues in self._table.items()
        }

    def listing(self) -> Generator[None, None, bytes]:
        """`all` as the wire has it (GET_ALL_CONSUMER_OFFSET), made in steps; what changes
        meanwhile may be in it or not."""
        texts: list[str] = []
        written = 0
        for pair in self.pairs():
            if written > STEP:
                yield None
                written = 0
            queues = self._table.get(pair)
            written += 1
            if queues is not None:
                written += len(queues)
                offsets = ",".join([f'"{queue}":{queues[queue]}' for queue in sorted(queues)])
                texts.append(f"{quote(offset_key(*pair))}:{{{offsets}}}")
        return f'{{"offsetTable":{{{",".join(texts)}}}}}'.encode()

    def document(self) -> dict[str, Any]:
        """The content of the file."""
        return {"offsetTable": self.all()}

    def take_changes(self) -> Changes | None:
        """The changes since the last call, for `save`; None without changes."""
        changes = self._text.take()
        if changes is not None:
            self._taken = changes
        return changes

    def save(self, changes: Changes) -> None:
        """Write the table with what `take_changes` gave. Any thread. Raises OSError."""
        with self._saving:
            self._file.save(self._text.text(changes))

    def flush(self) -> None:
        """Write what changed, now. Raises OSError."""
        changes = self.take_changes()
        if changes is not None:
            self.save(changes)

    def mark_unsaved(self) -> None:
        """The last `save` failed: the next `take_changes` gives its changes again."""
        self._text.put_back(self._taken)

    def mark_lost(self) -> None:
        """The file is gone: the next `take_changes` gives the whole table."""
        self._text.put_back_all()

    def _refuse_beyond(self, group: str, topic: str, queue_id: int, offset: int) -> str:
        why = f"it is negative or beyond the end of queue {queue_id} of {topic}"
        if offset > 0 and not self._max_offset(topic, queue_id):
            why = f"queue {queue_id} of {topic} has no message, if it is there at all"
        return self._refuse(group, topic, queue_id, offset, why)

    def _refuse(self, group: str, topic: str, queue_id: int, offset: int, why: str) -> str:
        self.refused += 1
        # -1 is what some clients commit (ali-ons, Go) before they have consumed anything.
        log.log(
            logging.DEBUG if offset == NO_OFFSET else logging.WARNING,
            "offset refused group=%s topic=%s queue=%d offset=%d queue_end=%d reason=%s",
            group,
            topic,
            queue_id,
            offset,
            self._max_offset(topic, queue_id),
            why,
        )
        return why


class OffsetTables(Protocol):
    """Committed offsets, of consumer groups or of delay levels."""

    def tables(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """((topic, group), offsets by queue id) of all."""
        ...


def committed_by_queue(
    on_loop: OnOwner, *tables: OffsetTables
) -> dict[tuple[str, int], dict[str, int]]:
    """Each group's offset by queue, with which retention says which groups still need what is about
    to be deleted. Worker thread; the tables are read on the loop."""
    by_queue: dict[tuple[str, int], dict[str, int]] = {}
    for (topic, group), offsets in on_loop(
        lambda: [entry for table in tables for entry in table.tables()]
    ):
        # Copied at once: the loop may be changing it.
        for queue_id, offset in dict(offsets).items():
            by_queue.setdefault((topic, queue_id), {})[group] = offset
    return by_queue


def parse_table(document: Any) -> OffsetTable:
    """The offsets of a file's document. Raises ValueError, KeyError or TypeError."""
    table: OffsetTable = {}
    for key, queues in members(members(document)["offsetTable"]).items():
        table[parse_key(key)] = {
            int(queue): int(offset) for queue, offset in members(queues).items()
        }
    return table
