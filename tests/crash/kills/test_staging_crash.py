"""A crash at every point of staging and publishing: after the next start each row is there once.

Power cuts: everything of staging is in one log, so what a cut leaves is a beginning of it. Each
beginning, record by record, is made a store of its own and opened. kill -9: the directory as it is
after each append of the run, and after each turn. Damage: each record behind the decisions in turn,
in a log that ends before the first batch is done.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from aerobee.broker.staging import publish as stage_publish
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.stages import StagePart
from aerobee.protocol.message.properties import decode_properties, encode_properties, index_keys
from aerobee.protocol.message.record import Message, StoreMessage, decode_record
from aerobee.protocol.message.record_layout import pack_host
from aerobee.protocol.names import SCHEDULE_TOPIC, STAGE_TOPIC
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.marks import Marks
from aerobee.store.message_store import MessageStore
from tests.unit.broker.staging.staging_support import Desk, Row, rows, texts
from tests.unit.store.support import adopt, kill_image, message

KEY = ("query-1", 7)
OTHER = ("query-2", 0)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_publish, "_SLICE_ROWS", 3)


class Killed(BaseException):
    """The process is gone."""


class Life:
    """One broker's life: two batches of two queries, some rows of them delayed, foreign messages in
    between."""

    def __init__(self, path: Path, *, save: bool = False) -> None:
        self.desk = Desk(path, delays=True).start()
        self.save = save
        self.given = {
            KEY: rows("a", 8) + rows("late4", 4) + rows("late0", 2) + rows("a-audit", 3, "Audit"),
            # Rows that are alike but for where they go, and some that are alike.
            OTHER: rows("b", 3)
            + [("Orders", 0, b"same")] * 2
            + [("Orders", 1, b"same")]
            + [("Orders", 0, b"late2")] * 2
            + [("Orders", 1, b"late2"), ("Audit", 1, b"late2")],
        }
        self.parts: dict[tuple[str, int], list[StagePart]] = {}

    def run(self) -> None:
        desk = self.desk
        for key, given in self.given.items():
            desk.stage(key, 9, rows("zombie", 3))
            self.parts[key] = [desk.stage(key, n, given[n::2]) for n in range(2)]
            desk.store.log.put(message(b"foreign", queue_id=3))
        for key, parts in self.parts.items():
            desk.intent(key, parts)
        while desk.loop.turn():
            desk.store.log.put(message(b"foreign", queue_id=3))
            if self.save:
                desk.save()
        desk.sync()
        if self.save:
            desk.save()

    def expected(self, *keys: tuple[str, int]) -> list[str]:
        return texts([row for key in keys for row in self.given[key]])


def ours(desk: Desk) -> list[str]:
    """All that consumers find, or will find."""
    found = sorted(desk.bodies() + desk.waiting())
    return [text for text in found if not text.endswith("/foreign")]


def check(path: Path, life: Life) -> tuple[str, str]:
    """The result of a start on `path`: batches whole or not at all, in the end each row once."""
    desk = Desk(path, delays=True)
    states = desk.state(KEY), desk.state(OTHER)
    before = Counter(ours(desk))
    assert not before - Counter(life.expected(KEY, OTHER)), "a row is there twice"
    desk.start().settle()
    decided = [key for key in (KEY, OTHER) if desk.state(key) != "none"]
    assert ours(desk) == life.expected(*decided)
    finish(desk, life)
    assert ours(desk) == life.expected(KEY, OTHER)
    desk.close()
    return states


def finish(desk: Desk, life: Life) -> None:
    """Do as a driver that has heard nothing: commit, or write the batch again."""
    for key, given in life.given.items():
        try:
            desk.intent(key, life.parts.get(key, []) or [desk.stage(key, 0, given)])
        except BadRequest:
            desk.intent(key, [desk.stage(key, 0, given)])
    desk.settle()


def again(found: Message) -> StoreMessage:
    properties = found.properties
    return StoreMessage(
        found.topic,
        found.queue_id,
        found.flag,
        0,
        found.born_timestamp_ms,
        pack_host(*found.born_host),
        pack_host(*found.store_host),
        0,
        0,
        found.body,
        encode_properties(properties).encode(),
        0,
        index_keys(decode_properties(encode_properties(properties))),
    )


def log_of(store: MessageStore) -> list[Message]:
    return [decode_record(record) for record in store.reader.records_from(0, ())]


def test_each_beginning_of_the_log_leads_to_each_row_once(tmp_path: Path) -> None:
    life = Life(tmp_path / "whole")
    life.run()
    log = log_of(life.desk.store)
    assert len(log) > 40
    assert sum(found.topic == STAGE_TOPIC for found in log) > 15
    seen: Counter[tuple[str, str]] = Counter()
    for count in range(len(log) + 1):
        desk = Desk(tmp_path / "cut", delays=True)
        for found in log[:count]:
            desk.store.log.put(again(found))
        desk.store.dispatch()
        desk.close()
        seen[check(tmp_path / "cut", life)] += 1
        shutil.rmtree(tmp_path / "cut")
    life.desk.close()
    assert set(seen) >= {("none", "none"), ("open", "none"), ("open", "open"), ("done", "done")}


@pytest.mark.parametrize("save", [False, True])
def test_kill_9_after_each_append_leads_to_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: bool
) -> None:
    seen: set[tuple[str, str]] = set()
    for count in range(1, 1000):
        life = Life(tmp_path / "live", save=save)
        left = [count]
        for name in ("put", "put_batch"):
            monkeypatch.setattr(life.desk.store.log, name, counted(life.desk.store.log, name, left))
        with contextlib.suppress(Killed):
            life.run()
        image = kill_image(tmp_path / "live", tmp_path / "image")
        monkeypatch.undo()
        monkeypatch.setattr(stage_publish, "_SLICE_ROWS", 3)
        life.desk.close()
        seen.add(check(adopt(image), life))
        shutil.rmtree(tmp_path / "live")
        shutil.rmtree(image)
        if left[0] > 0:
            break
    assert count > 30
    assert seen >= {("none", "none"), ("open", "none"), ("open", "open"), ("done", "done")}


@contextlib.contextmanager
def half_published(tmp_path: Path) -> Iterator[tuple[Life, list[Message], int, int]]:
    """A life and its log; the numbers of the first record behind all intents, and of the record
    that says that a batch is done. The records before it are in an open store, `tmp_path /
    "half"`."""
    life = Life(tmp_path / "whole")
    life.run()
    records = log_of(life.desk.store)
    life.desk.close()
    kinds = [one.properties.get("kind") for one in records]
    open_until = kinds.index("done")
    half = Desk(tmp_path / "half", delays=True)
    for one in records[:open_until]:
        half.store.log.put(again(one))
    yield life, records, len(kinds) - kinds[::-1].index("intent"), open_until
    half.close()


@pytest.mark.parametrize("kills", [0, 1])
def test_damage_before_a_batch_is_done_leads_to_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """`kills` starts end after the first thing that they put."""
    hurt: Counter[str] = Counter()
    with half_published(tmp_path) as (life, records, first, open_until):
        for number in range(first, open_until):
            image = kill_image(tmp_path / "half", tmp_path / "image")
            gap = records[number].log_offset, records[number + 1].log_offset
            zero(image, *gap)
            adopt(image, flushed=records[open_until].log_offset)
            for _ in range(kills):
                with killed_in(image, monkeypatch) as desk:
                    assert desk.store.known_gaps == (gap,)
                    desk.start().settle()
            check(image, life)
            hurt[records[number].topic] += 1
            shutil.rmtree(image)
    assert hurt.keys() >= {"Orders", STAGE_TOPIC, SCHEDULE_TOPIC}


@pytest.mark.parametrize("part", [b"Orders", b"-00"])
def test_damage_that_no_recovery_has_seen_leads_to_each_row_once(
    tmp_path: Path, part: bytes
) -> None:
    """A start reads the log from what was known to be synced on: bits below may have changed. They
    are those of a topic, which is no text then, or of a body, which is another message's then."""
    hurt = 0
    with half_published(tmp_path) as (life, records, first, open_until):
        for number in range(first, open_until):
            if records[number].topic == STAGE_TOPIC:
                continue
            image = kill_image(tmp_path / "half", tmp_path / "image")
            desk = Desk(adopt(image), delays=True)
            hurt += flip(image, part, records[number].log_offset, records[number + 1].log_offset)
            desk.start().settle()
            assert ours(desk) == life.expected(KEY, OTHER)
            desk.close()
            shutil.rmtree(image)
    assert hurt > 5


def flip(root: Path, part: bytes, start: int, end: int) -> bool:
    """Change a bit of the last such bytes of a record; False if it has none."""
    path, position, length = piece_of(root, start, end)
    with path.open("r+b") as file:
        file.seek(position)
        record = file.read(length)
        place = record.rfind(part, 0, record.rfind(b"UNIQ_KEY"))
        if place >= 0:
            file.seek(position + place)
            file.write(bytes([record[place] ^ 0x80]))
    return place >= 0


def piece_of(root: Path, start: int, end: int) -> tuple[Path, int, int]:
    """File, position and length of the log's bytes from `start` to `end` or the segment's end."""
    for path in sorted((root / "commitlog").iterdir()):
        first, size = int(path.name), path.stat().st_size
        if first <= start < first + size:
            return path, start - first, min(end, first + size) - start
    raise AssertionError(f"no segment holds {start}")


@contextlib.contextmanager
def killed_in(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A broker on `root` that is killed after its first append."""
    desk = Desk(root, delays=True)
    left = [1]
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        for name in ("put", "put_batch"):
            patch.setattr(desk.store.log, name, counted(desk.store.log, name, left))
        yield desk
    assert left == [0]
    later = kill_image(root, root.with_name("later"))
    desk.close()
    shutil.rmtree(root)
    adopt(later.rename(root))


def zero(root: Path, start: int, end: int) -> None:
    """Bytes of the log that a disk has lost."""
    path, position, length = piece_of(root, start, end)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(length))


def counted(log: CommitLog, name: str, left: list[int]):  # type: ignore[no-untyped-def]
    real = getattr(log, name)

    def put(what: object) -> object:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        result = real(what)
        if left[0] == 0:
            raise Killed
        return result

    return put


def test_a_done_batch_is_remembered_longer_than_its_log(tmp_path: Path) -> None:
    life = Life(tmp_path / "store", save=True)
    life.run()
    life.desk.close()
    shutil.rmtree(tmp_path / "store" / "commitlog")
    for name in ("consumequeue", "index", "checkpoint", "offsets", "abort"):
        path = tmp_path / "store" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    desk = Desk(tmp_path / "store").start()
    assert (desk.state(KEY), desk.state(OTHER)) == ("done", "done")
    finish(desk, life)
    assert ours(desk) == []
    desk.close()


def test_a_file_that_is_ahead_of_the_log_is_not_written(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "store", flush_interval_ms=60_000, flush_thorough_interval_ms=60_000)
    desk.start()
    given: list[Row] = rows("a", 5)
    desk.intent(KEY, [desk.stage(KEY, 0, given)])
    while desk.loop.turn():
        pass
    assert desk.staging.table.state(KEY) == "done"
    # The mark is where it was as long as nobody looks: this is before the next sync ends.
    file = desk.staging.file
    written = desk.store.written
    file._marks = cast("Marks", SimpleNamespace(written=written, durable=0))
    assert file.take_changes() is None
    file._marks = cast("Marks", SimpleNamespace(written=written, durable=written))
    assert file.take_changes() is not None
    desk.close()


def test_without_its_file_all_of_the_log_is_read(tmp_path: Path) -> None:
    life = Life(tmp_path / "store", save=True)
    life.run()
    life.desk.close()
    for path in (tmp_path / "store" / "config").glob("stages.*"):
        path.unlink()
    assert check(tmp_path / "store", life) == ("done", "done")
