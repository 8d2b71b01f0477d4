"""SIGKILL at every change of a file or name that repair, rebuild and truncate make.

A stopped store with damage of several kinds is given to one of the tools, whose process ends before
its n-th write, sync, rename or removal, n = 1, 2, ... until a run meets none, or at some of these.
Its leavings are judged twice: as they lie, by a reader that believes each queue entry whose record
has the right size, as RocketMQ does: no entry may lead to a filler. And by a start of ours: it
serves every message that was whole, at its own offset and once, and nothing else, to pulls, queries
and look-ups by place; and no number is given twice.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile, pretty
from aerobee.protocol.message import filler
from aerobee.protocol.message.record import decode_record
from aerobee.store.at_rest.repair import steps
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import rebuild
from aerobee.store.at_rest.repair.repair import plan_repair, repair
from aerobee.store.at_rest.repair.truncate import plan_cut, truncate
from aerobee.store.message_store import MessageStore
from aerobee.store.reading import queue_reader as reader
from tests import campaign
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.disk.crashing_files import Crashed, CrashingFiles
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    adopt,
    fill,
    message,
    read_all,
    small_settings,
)

SUITE = "kill tools"
COUNT = 66
QUEUES = 3
BODY_POSITION, QUEUE_OFFSET_AT = 88, 27
#: More changes than any run makes.
NEVER = 1 << 30

Tool = Callable[[StoreAtRest], None]


class KilledFiles(CrashingFiles):
    """Files of a process that is killed at a sync as well; counts the changes at which it would
    die."""

    changes = 0

    def _change(self) -> None:
        self.changes += 1
        super()._change()

    def data_sync(self, fd: int) -> None:
        self._change()
        super().data_sync(fd)

    def sync(self, fd: int) -> None:
        self._change()
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self._change()
        super().sync_directory(path)


class Damaged(NamedTuple):
    """A stopped store, and its records by (queue id, queue offset): those that are whole."""

    root: Path
    intact: dict[tuple[int, int], at.Stored]
    lost: dict[tuple[int, int], at.Stored]


def save(path: str, content: Mapping[str, Any]) -> None:
    JsonStateFile(path).save(pretty(content))


def repair_it(rest: StoreAtRest) -> None:
    repair(rest, plan_repair(rest), save)


def rebuild_it(rest: StoreAtRest) -> None:
    rebuild(rest)


def truncate_it(rest: StoreAtRest) -> None:
    place = sorted(one.log_offset for one in at.records(Path(rest.root)))[COUNT // 2]
    truncate(rest, plan_cut(rest, at=place), save)


def discard_it(rest: StoreAtRest) -> None:
    place = sorted(one.log_offset for one in at.records(Path(rest.root)))[COUNT // 3]
    truncate(rest, plan_cut(rest, at=place), save, discard=True)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    """Damaged are: the first message of a queue, two neighbours, the last message of a segment, a
    message whose number a flipped bit has changed, and the last of a queue."""
    root = tmp_path_factory.mktemp("tools") / "template"
    store = MessageStore.open(small_settings(root))
    fill(store, COUNT, queues=QUEUES)
    assert store.close()
    records = at.records(root)
    last = max(n for n, one in enumerate(records) if one.log_offset < SEGMENT)
    hit = {0, 10, 11, last, 40, COUNT - 2}
    for number in hit:
        position = QUEUE_OFFSET_AT if number == 40 else BODY_POSITION
        at.flip_log(root, records[number].log_offset + position, 64 if number == 40 else 1)
    places = {number: (one.queue_id, one.queue_offset) for number, one in enumerate(records)}
    return Damaged(
        root,
        {places[n]: one for n, one in enumerate(records) if n not in hit},
        {places[n]: one for n, one in enumerate(records) if n in hit},
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    """That store without damage: rebuild and truncation want repair first."""
    root = tmp_path_factory.mktemp("whole") / "template"
    store = MessageStore.open(small_settings(root))
    fill(store, COUNT, queues=QUEUES)
    assert store.close()
    return Damaged(root, {(one.queue_id, one.queue_offset): one for one in at.records(root)}, {})


def killed(template: Path, root: Path, tool: Tool, nth: int) -> int:
    """Run the tool so that it dies at its n-th change; return the number of changes it made."""
    shutil.rmtree(root, ignore_errors=True)
    at.copy(template, root)
    files = KilledFiles(nth)
    try:
        with StoreAtRest(small_settings(root), files=files) as rest:
            tool(rest)
    except Crashed:
        files.give_back(root)
    adopt(root)
    return files.changes


def kills(template: Path, root: Path, tool: Tool, what: str) -> Iterator[int]:
    """The changes at which to kill: all in a campaign, otherwise some that the run's seed draws."""
    made = killed(template, root, tool, NEVER)
    every = range(1, made + 1)
    return iter(
        campaign.part(
            every,
            campaign.size(SUITE) or made,
            campaign.rng(f"{SUITE} {what}"),
            lambda nth: nth * 8 // (made + 1),
        )
    )


def led_to_fillers(root: Path) -> list[str]:
    """Entries that lead to a filler of their size, for a reader that asks no more."""
    wrong = []
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        for slot, (log_offset, size, _) in enumerate(at.UNIT.iter_unpack(path.read_bytes())):
            segment, position = at.place(log_offset, root)
            if not 0 < size < 0x7FFFFFFF or not segment.exists():
                continue
            with segment.open("rb") as file:
                file.seek(position)
                data = file.read(size)
            if data[:8] == size.to_bytes(4, "big") + b"\xda\xa3\x20\xa7" and (
                decode_record(data).topic == filler.FILLER_TOPIC
            ):
                wrong.append(f"slot {slot} of {path} leads to a filler")
    return wrong


def falsely_served(root: Path, store_of: Damaged, *, below: int = 1 << 62) -> list[str]:
    """All that a start serves and must not, or does not serve and must; whole messages `below` a
    log offset must be there, those behind it may."""
    wrong: list[str] = []
    with closing(MessageStore.open(small_settings(root, scrub_bytes_per_second=0))) as store:
        served = Counter()
        for queue_id in range(QUEUES):
            for one in read_all(store, queue_id=queue_id):
                place = (queue_id, one.queue_offset)
                served[place] += 1
                expected = store_of.intact.get(place)
                if expected is None or (one.topic, one.body, one.log_offset) != (
                    "Orders",
                    expected.body,
                    expected.log_offset,
                ):
                    wrong.append(f"{place} is served {one.topic} {one.body[:20]!r}")
        wrong += [f"{place} is served {n} times" for place, n in served.items() if n != 1]
        for place, one in store_of.intact.items():
            if one.log_offset < below and place not in served:
                wrong.append(f"{place} at {one.log_offset} is not served")
        wrong += _falsely_found(store, store_of)
        highest = Counter()
        for queue_id, offset in served:
            highest[queue_id] = max(highest[queue_id], offset + 1)
        for queue_id in range(QUEUES):
            number = store.log.put(message(b"new", queue_id=queue_id)).queue_offset
            if number < highest[queue_id]:
                wrong.append(f"number {number} of queue {queue_id} is given again")
    return wrong


def _falsely_found(store: MessageStore, store_of: Damaged) -> list[str]:
    """The faults of look-ups by keys and by places."""
    wrong = []
    # The record whose number is damaged is whole but for that.
    known = {one.body for one in store_of.intact.values()} | {b"000040" + b"." * 50}
    for number in range(COUNT):
        for record in store.search.query("Orders", f"U{number}", 10, 0, FIRST_MS * 2).records:
            if decode_record(record).body not in known:
                wrong.append(f"key U{number} finds {decode_record(record).body[:20]!r}")
    for one in (*store_of.intact.values(), *store_of.lost.values()):
        record = store.reader.record_at(one.log_offset)
        if record is not None and decode_record(record).topic != "Orders":
            wrong.append(f"a filler is viewed at {one.log_offset}")
    return wrong


def judged(
    store_of: Damaged, root: Path, tool: Tool, nth: int, *, below: int = 1 << 62
) -> list[str]:
    """The faults after a kill at the n-th change."""
    killed(store_of.root, root, tool, nth)
    wrong = led_to_fillers(root) + falsely_served(root, store_of, below=below)
    return [f"change {nth}: {text}" for text in wrong]


def test_repair_killed_anywhere_leaves_nothing_invented(damaged: Damaged, tmp_path: Path) -> None:
    root = tmp_path / "store"
    tried = [judged(damaged, root, repair_it, n) for n in kills(damaged.root, root, repair_it, "")]
    wrong = [text for one in tried for text in one]
    campaign.note(SUITE, len(tried), wrong=len(wrong))
    assert tried
    assert wrong == []


@pytest.mark.parametrize("tool", [truncate_it, discard_it, rebuild_it])
def test_truncation_and_rebuild_killed_anywhere_invent_nothing(
    whole: Damaged, tmp_path: Path, tool: Tool
) -> None:
    share = {truncate_it: COUNT // 2, discard_it: COUNT // 3, rebuild_it: COUNT - 1}[tool]
    below = sorted(one.log_offset for one in whole.intact.values())[share]
    root = tmp_path / "store"
    places = kills(whole.root, root, tool, tool.__name__)
    tried = [judged(whole, root, tool, nth, below=below) for nth in places]
    wrong = [text for one in tried for text in one]
    campaign.note(SUITE, len(tried), wrong=len(wrong))
    assert tried
    assert wrong == []


@pytest.mark.parametrize("off", ["entries are not blanked first", "fillers are not recognised"])
def test_the_fault_is_seen(
    damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    """The negative controls: a repair that fills first, a reader that takes fillers for records."""
    if off == "fillers are not recognised":
        monkeypatch.setattr(reader, "is_filler", lambda *_: False)
    else:
        monkeypatch.setattr(steps, "blank_entries", lambda *_: None)
    caught = tried = 0
    for nth in kills(damaged.root, tmp_path / "store", repair_it, off):
        wrong = judged(damaged, tmp_path / "store", repair_it, nth)
        caught += any("filler" in text for text in wrong)
        tried += 1
        if campaign.enough(caught):
            break
    campaign.note_control(SUITE, off, caught, tried)
    assert caught
