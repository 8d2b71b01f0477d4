"""Claims about the checker: it finds nothing in a sound store, and each thing that can be wrong."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.judges.checker import check, differing
from tests.crash.judges.history import FAIL, OK, UNKNOWN, Found, History, Promise, Seen, Sent
from tests.crash.judges.records import (
    PRE_BLANK_SIZE,
    Record,
    Unreadable,
    java_hash,
    read_log,
    read_queues,
    read_record,
)
from tests.unit.store.support import fill, small_settings

SIZE = 1000
COUNT = 12
QUEUES = 2
SYNC = Promise()


def sends() -> list[Sent]:
    """Twelve acked messages of one producer, alternating between two queues."""
    return [
        Sent(
            1, number, "T", number % QUEUES, b"body %d" % number,
            {"UNIQ_KEY": f"U{number}", "TAGS": "a", "WAIT": "true"}, OK,
            number // QUEUES, number * SIZE, number, float(number),
        )
        for number in range(COUNT)
    ]  # fmt: skip


def record_of(sent: Sent) -> Record:
    properties = "\2".join(f"{name}\1{value}" for name, value in sent.properties.items())
    stored = properties.replace("\2WAIT\1true", "") + "\2CLUSTER\1c"
    return Record(
        sent.topic, sent.queue_id, sent.queue_offset, sent.log_offset, SIZE, sent.body,
        stored.encode(), 5000 + sent.sequence,
    )  # fmt: skip


def found_of(sent: list[Sent]) -> Found:
    """A store that holds exactly these."""
    records = [record_of(one) for one in sent]
    queues = [("T", queue_id) for queue_id in range(QUEUES)]
    pulled = {key: [one for one in records if one.queue_id == key[1]] for key in queues}
    return Found(
        pulled,
        {key: (0, len(pulled[key])) for key in queues},
        0,
        len(sent) * SIZE,
        records,
        {
            key: {one.queue_offset: (one.log_offset, SIZE, java_hash("a")) for one in pulled[key]}
            for key in queues
        },
        {("T", f"U{one.sequence}"): [one.log_offset] for one in sent},
        0,
        {"T"},
    )


def history() -> History:
    seen = [Seen("T", 0, offset, b"body %d" % (offset * QUEUES), offset) for offset in range(3)]
    return History(sends(), seen, {"T": 0})


def rules(known: History, found: Found, promise: Promise = SYNC) -> set[str]:
    return {one.rule for one in check(known, found, promise)}


def test_sound_store_has_no_violations() -> None:
    assert check(history(), found_of(sends()), SYNC) == []


def test_store_without_anything_promised_may_be_empty() -> None:
    nobody_told = History([replace(one, outcome=UNKNOWN) for one in sends()])
    assert check(nobody_told, found_of([]), SYNC) == []


Change = Callable[[Found], None]


def lose_last(found: Found) -> None:
    lost = found.pulled["T", 1].pop()
    found.ranges["T", 1] = (0, lost.queue_offset)
    assert found.records is not None
    assert found.units is not None
    assert found.hits is not None
    found.records.pop()
    del found.units["T", 1][lost.queue_offset]
    del found.hits["T", "U11"]
    found.log_end = 11 * SIZE


def swap_bodies(found: Found) -> None:
    first, second = found.pulled["T", 0][:2]
    found.pulled["T", 0][:2] = [replace(first, body=second.body), replace(second, body=first.body)]


def change_record(**values: object) -> Change:
    def change(found: Found) -> None:
        found.pulled["T", 0][2] = replace(found.pulled["T", 0][2], **values)

    return change


def in_records(**values: object) -> Change:
    def change(found: Found) -> None:
        assert found.records is not None
        found.records[4] = replace(found.records[4], **values)

    return change


def change_unit(value: tuple[int, int, int] | None) -> Change:
    def change(found: Found) -> None:
        assert found.units is not None
        if value is None:
            del found.units["T", 0][1]
        else:
            found.units["T", 0][1] = value

    return change


def twice(found: Found) -> None:
    found.pulled["T", 0].append(replace(found.pulled["T", 0][0], queue_offset=6))
    found.ranges["T", 0] = (0, 7)


def forget_key(found: Found) -> None:
    assert found.hits is not None
    found.hits["T", "U3"] = []


def lie_about_end(found: Found) -> None:
    found.ranges["T", 0] = (0, 9)


def commit_too_far(found: Found) -> None:
    found.committed["T", 0] = 7


def test_commits_may_be_ahead_of_what_a_power_cut_has_left() -> None:
    found = found_of(sends())
    commit_too_far(found)
    assert rules(history(), found, replace(SYNC, commits=False)) == set()


def report_gap(found: Found) -> None:
    found.gaps = 1


def forget_topic(found: Found) -> None:
    found.topics = set()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lose_last, "I1"),
        (change_record(body=b"nobody's"), "I2"),
        (change_record(properties=b"UNIQ_KEY\1other"), "I2"),
        (change_record(properties=b"UNIQ_KEY\1U3\2TAGS\0\0\0"), "I2"),
        (change_record(queue_id=1), "I2"),
        (swap_bodies, "I3"),
        (change_record(log_offset=4001), "I3"),
        (in_records(queue_offset=3), "I3"),
        (swap_bodies, "I4"),
        (lie_about_end, "I4"),
        (twice, "I5"),
        (in_records(body=b"body 2"), "I5"),
        (change_unit(None), "I6"),
        (change_unit((1, SIZE, 97)), "I6"),
        (change_unit((0, PRE_BLANK_SIZE, 0)), "I6"),
        (forget_key, "I6"),
        (in_records(store_ms=1), "I7"),
        (commit_too_far, "I7"),
        (report_gap, "I8"),
        (forget_topic, "config"),
    ],
)
def test_each_fault_breaks_its_rule(change: Change, rule: str) -> None:
    found = found_of(sends())
    change(found)
    assert rule in rules(history(), found, replace(SYNC, segment_bytes=1 << 20))


def test_message_that_a_consumer_saw_may_not_be_gone() -> None:
    found = found_of(sends()[:4])
    known = History([replace(one, outcome=UNKNOWN) for one in sends()], history().seen)
    assert rules(known, found) == {"I10"}
    assert rules(known, found, replace(SYNC, durable=False)) == set()


def test_refused_message_may_not_be_stored() -> None:
    known = history()
    known.sends[5].outcome = FAIL
    assert "I2" in rules(known, found_of(sends()))


def test_answers_after_the_cut_promise_nothing() -> None:
    known = history().until(dict.fromkeys(range(5), 0.0))
    assert [one.outcome for one in known.sends] == [OK] * 5 + [UNKNOWN] * 7
    assert check(known, found_of(sends()[:5]), SYNC) == []
    assert "I1" in rules(known, found_of(sends()[:4]))


def test_async_flush_may_lose_a_suffix_that_is_young_enough() -> None:
    known = replace(history(), seen=[])
    found = found_of(sends()[:9])
    lost_from_9 = Promise(durable=False, cut_at=12.0, loss_s=2.0, tail_s=4.0)
    assert rules(known, found, lost_from_9) == set()
    assert rules(known, found, replace(lost_from_9, tail_s=2.5)) == {"I1"}


def test_while_no_daemon_runs_nothing_could_be_synced() -> None:
    known = replace(history(), seen=[])
    found = found_of(sends()[:9])
    late = Promise(durable=False, cut_at=12.0, loss_s=1.6, tail_s=1.6)
    assert rules(known, found, late) == {"I1"}
    for down, wrong in (
        ((10.0, 12.5), set()), ((8.0, 11.0), set()), ((11.0, 12.0), {"I1"}), ((1.0, 8.5), {"I1"}),
    ):  # fmt: skip
        assert rules(known, found, replace(late, down=down)) == wrong, down


def test_async_flush_loses_at_most_the_short_bound_behind_four_pages() -> None:
    known = replace(history(), seen=[])
    for one in known.sends:
        one.log_offset *= 6  # so that messages 4 and later lie 24,000 bytes behind message 0
    found = found_of([])
    bounds = Promise(durable=False, cut_at=12.0, loss_s=7.0, tail_s=20.0)
    assert rules(known, found, bounds) == {"I1"}  # 8 seconds since message 4
    assert rules(known, found, replace(bounds, loss_s=9.0)) == set()


def test_async_flush_may_not_lose_what_stands_below_the_end() -> None:
    known = replace(history(), seen=[])
    found = found_of(sends())
    gone = found.pulled["T", 0].pop(1)
    assert gone.body == b"body 2"
    assert "I1" in rules(known, found, Promise(durable=False, cut_at=2.5, loss_s=9, tail_s=9))


def test_holes_of_a_failed_disk_cost_young_messages_only_and_are_named() -> None:
    known = replace(history(), seen=[])
    found = found_of(sends())
    assert found.pulled["T", 0].pop(1).body == b"body 2"
    found.records = found.units = found.hits = None
    found.gaps = 1
    bounds = Promise(durable=False, cut_at=3.5, loss_s=9, tail_s=2, holes=True)
    assert rules(known, found, bounds) == set()
    assert rules(known, found, replace(bounds, tail_s=1)) == {"I1"}
    assert rules(known, found, replace(bounds, durable=True)) == {"I1"}
    found.gaps = 0
    assert "I1" in rules(known, found, bounds)


def test_expired_segments_may_be_gone_and_nothing_else() -> None:
    known = history()
    found = found_of(sends()[4:])
    found.ranges = dict.fromkeys(found.ranges, (2, 6))
    found.log_start, found.log_end = 4 * SIZE, COUNT * SIZE
    assert rules(known, found, replace(SYNC, expiry=True)) == set()
    assert "I1" in rules(known, found)
    found.log_start = 3 * SIZE
    assert "I1" in rules(known, found, replace(SYNC, expiry=True))


def test_k_damaged_records_may_cost_k_messages_and_no_more() -> None:
    known = replace(history(), seen=[])
    found = found_of(sends())
    found.gaps = 2
    for _ in range(2):
        assert found.records is not None
        found.records.remove(found.pulled["T", 0].pop(1))
    found.units = found.hits = None
    assert rules(known, found, replace(SYNC, damaged=2)) == set()
    assert {"I1", "I8"} <= rules(known, found, replace(SYNC, damaged=1))


def test_different_files_are_named() -> None:
    files = {"commitlog/0": b"a", "consumequeue/T/0/0": b"b"}
    assert differing(files, dict(files)) == []
    changed = differing(files, {"commitlog/0": b"x", "new": b""})
    assert [one.text.split()[0] for one in changed] == ["commitlog/0", "consumequeue/T/0/0", "new"]
    assert {one.rule for one in changed} == {"I9"}


# --- reading files --------------------------------------------------------------------------------


def test_reader_of_files_agrees_with_the_store(tmp_path: Path) -> None:
    from aerobee.store.message_store import MessageStore

    store = MessageStore.open(small_settings(tmp_path))
    bodies = fill(store, 90, queues=3)
    log = read_log(tmp_path / "commitlog")
    assert [one.body for one in log.records] == bodies
    assert (log.start, log.end, log.rest_is_zero) == (0, store.written, True)
    assert len({one.log_offset // 4096 for one in log.records}) > 1
    units = read_queues(tmp_path / "consumequeue")
    assert {key: len(found) for key, found in units.items()} == {
        ("Orders", n): 30 for n in range(3)
    }
    for one in log.records:
        unit = (one.log_offset, one.size, java_hash(one.property("TAGS")))
        assert units["Orders", one.queue_id][one.queue_offset] == unit
    store.close()


def test_damaged_record_is_unreadable(tmp_path: Path) -> None:
    from aerobee.store.message_store import MessageStore

    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 1)
    store.close()
    data = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    sound = read_record(data, 0)
    for position in (5, 95, sound.size - 3):
        broken = bytearray(data[: sound.size])
        broken[position] ^= 0x40
        if position == sound.size - 3:  # properties have no sum of their own
            assert read_record(broken, 0) != sound
            continue
        with pytest.raises(Unreadable):
            read_record(broken, 0)
    with pytest.raises(Unreadable):
        read_record(struct.pack(">I", 400) + data[4:300], 0)
    assert zlib.crc32(sound.body) & 0x7FFFFFFF == int.from_bytes(data[8:12], "big")


def test_copies_of_a_history_do_not_share_outcomes() -> None:
    known = history()
    before = deepcopy(known)
    known.until({})
    assert known == before
