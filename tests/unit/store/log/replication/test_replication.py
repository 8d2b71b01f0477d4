"""A master's log arrives on its slave, byte for byte; what is not sound does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.store.log.replication.appender import BlockDamaged, BlockRefused
from aerobee.store.log.replication.feed import CannotFollow, FollowError
from tests.forms import compiled_form
from tests.unit.store.log.replication.pair import Pair
from tests.unit.store.support import SEGMENT, bodies, message


@pytest.fixture(params=["plain", "compiled"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    compiled = compiled_form().store if request.param == "compiled" else None
    two = Pair(tmp_path, compiled)
    yield two
    two.close()


def put(two: Pair, count: int, size: int = 300, topic: str = "Orders") -> None:
    for number in range(count):
        body = b"%d" % number + b"x" * size
        two.master.log.put(message(body, topic, number % 2, keys=f"k{number}", tags="t"))


def same(two: Pair) -> None:
    assert two.log_bytes(two.slave) == two.log_bytes(two.master)
    assert two.slave.marks.written == two.master.marks.written
    assert sorted(two.slave.queues()) == sorted(two.master.queues())
    for topic, queue_id in two.master.queues():
        assert two.slave.max_offset(topic, queue_id) == two.master.max_offset(topic, queue_id)
        assert bodies(two.slave, topic, queue_id) == bodies(two.master, topic, queue_id)


def test_an_empty_slave_gets_all_segments_and_the_same_queues(pair: Pair) -> None:
    put(pair, 60)
    pair.connect()
    pair.drain()
    same(pair)
    assert pair.master.marks.written > 3 * SEGMENT
    put(pair, 7, size=10, topic="Small")
    pair.drain(most=40)
    same(pair)


def test_replicated_moves_with_reports_and_kept_waits_for_it(pair: Pair) -> None:
    put(pair, 3)
    marks = pair.master.marks
    assert (marks.replicated, marks.kept, marks.lacks_slaves) == (0, 0, True)
    pair.connect()
    assert not marks.lacks_slaves
    pair.drain()
    assert marks.kept == marks.replicated == marks.written
    put(pair, 1)
    assert marks.replicated == marks.kept < marks.written
    pair.disconnect()
    assert marks.lacks_slaves


def test_a_connection_that_ends_within_a_record_loses_nothing(pair: Pair) -> None:
    put(pair, 20)
    pair.connect()
    for _ in range(200):
        if not pair.pump(most=90):
            break
        if pair.random.random() < 0.3:
            pair.connect()
    pair.drain()
    same(pair)


def test_a_log_without_a_whole_record_goes_on_at_1_again(pair: Pair) -> None:
    put(pair, 3)
    for restart in (False, True, False):
        pair.connect(1)
        assert pair.pump(most=50)
        assert (pair.slave.written, pair.appender.is_empty) == (0, False)
        if restart:
            pair.disconnect()
            assert pair.slave.close()
            pair.open_slave()
    pair.connect(1)
    pair.drain()
    same(pair)


def test_a_slave_goes_on_after_a_restart(pair: Pair) -> None:
    put(pair, 20)
    pair.connect()
    for _ in range(5):
        pair.pump()
    pair.disconnect()
    pair.slave.dispatch()
    assert pair.slave.close()
    pair.open_slave()
    pair.connect()
    pair.drain()
    same(pair)


def test_impossible_reports_are_refused_and_do_not_count(pair: Pair) -> None:
    put(pair, 4)
    end = pair.master.marks.committed
    for ask, kind in ((end + 1, FollowError.ABOVE), (1 << 62, FollowError.ABOVE)):
        with pytest.raises(CannotFollow) as refused:
            pair.connect(ask) if not pair.appender.is_empty else pair.feed.admit().report(ask)
        assert refused.value.kind is kind
        assert "truncate" in str(refused.value)
    follower = pair.feed.admit()
    follower.report(1)
    with pytest.raises(CannotFollow) as refused:
        follower.report(end)
    assert refused.value.kind is FollowError.UNSENT
    assert pair.master.marks.replicated == 1


def test_a_block_of_another_place_or_over_a_segments_end_is_refused(pair: Pair) -> None:
    put(pair, 4)
    pair.connect()
    pair.pump()
    with pytest.raises(BlockRefused, match="goes on at"):
        pair.appender.block(pair.appender.expected + 1, 10)
    with pytest.raises(BlockRefused, match="commit_log_segment_bytes"):
        pair.appender.block(pair.appender.expected, SEGMENT)


def test_only_blocks_of_whole_sound_records_are_taken_at_once(tmp_path: Path) -> None:
    two = Pair(tmp_path, compiled_form().store)
    put(two, 2)
    two.connect()
    two.drain()
    appender, start = two.appender, two.slave.written
    put(two, 2, size=10)
    new = two.log_bytes(two.master)[start:]
    damaged = bytearray(new)
    damaged[new.rindex(b"xxx")] ^= 1
    assert not appender.take_whole(start, memoryview(new)[:-1])
    assert not appender.take_whole(start, memoryview(damaged))
    assert not appender.take_whole(start + 1, memoryview(new))
    assert not appender.take_whole(start, memoryview(b""))
    two.receive_parts(start, new[:20])
    assert not appender.take_whole(start + 20, memoryview(new)[20:])
    assert two.slave.written == start
    two.connect()
    assert appender.take_whole(start, memoryview(new))
    assert two.slave.written == appender.report == two.master.marks.written
    two.slave.dispatch()
    two.master.dispatch()
    same(two)
    two.close()


def test_the_plain_form_takes_no_block_at_once(tmp_path: Path) -> None:
    two = Pair(tmp_path)
    put(two, 1)
    two.connect()
    two.drain()
    start = two.slave.written
    put(two, 1)
    new = two.log_bytes(two.master)[start:]
    assert not two.appender.take_whole(start, memoryview(new))
    two.close()


def test_damage_on_the_way_is_asked_for_again(pair: Pair) -> None:
    put(pair, 6)
    pair.connect()
    hit = []

    def flip(log_offset: int, data: bytes) -> bytes:
        if not hit and log_offset <= 600 < log_offset + len(data):
            hit.append(log_offset)
            at = 600 - log_offset
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    with pytest.raises(BlockDamaged, match="once more"):
        pair.pump_all(flip)
    pair.connect()
    pair.drain()
    same(pair)
    assert pair.slave.known_gaps == ()


def test_damage_on_the_master_is_taken_as_a_reported_gap(pair: Pair) -> None:
    put(pair, 30)
    pair.connect()

    def flip(log_offset: int, data: bytes) -> bytes:
        if log_offset <= 600 < log_offset + len(data):
            at = 600 - log_offset
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    with pytest.raises(BlockDamaged):
        pair.pump_all(flip)
    pair.connect()
    pair.pump_all(flip)
    pair.slave.dispatch()
    pair.master.dispatch()
    assert pair.slave.marks.written == pair.master.marks.written
    assert pair.slave.marks.dispatched == pair.master.marks.dispatched
    ((start, end),) = pair.slave.known_gaps
    assert start <= 600 < end
    lost = sum(len(bodies(pair.master, "Orders", q)) for q in (0, 1)) - sum(
        len(bodies(pair.slave, "Orders", q)) for q in (0, 1)
    )
    assert lost == 1


def test_a_slave_that_reports_nought_gets_the_first_segment(pair: Pair) -> None:
    put(pair, 60)
    follower = pair.feed.admit()
    follower.report(0)
    assert follower.position == 0


def test_a_slave_whose_next_segment_is_deleted_is_refused(pair: Pair) -> None:
    put(pair, 60)
    starts = [one.start for one in pair.master.reader._segments.segments]
    follower = pair.feed.admit()
    follower.report(1)
    assert follower.next_piece(10) is not None
    pair.master.reader._segments.take_front(starts[:2])
    # The descriptor keeps the segment at hand.
    assert follower.next_piece(10) is not None
    follower.took(SEGMENT - 1)
    with pytest.raises(CannotFollow) as refused:
        follower.next_piece(10)
    assert refused.value.kind is FollowError.BELOW


def test_one_slave_is_one_copy_however_often_it_is_connected(pair: Pair) -> None:
    """Its older connection may be dead, and nobody has noticed it yet."""
    put(pair, 4)
    end = pair.master.marks.committed
    for _ in range(2):
        pair.feed.admit("192.0.2.7").report(end)
    for follower in list(pair.feed.followers):
        assert pair.feed.near == 1
        follower.gone()
    assert pair.feed.near == 0
    assert pair.master.marks.lacks_slaves


def test_what_was_bad_is_no_part_of_the_log_after_a_restart(pair: Pair) -> None:
    """Sound records had arrived after it. A start would have taken the bad one for damage."""
    put(pair, 3)
    pair.connect()
    data = bytearray(pair.log_bytes(pair.master))
    data[100] ^= 1
    with pytest.raises(BlockDamaged):
        pair.receive_parts(1, bytes(data[1:]))
    assert pair.appender.written == 0
    assert not pair.appender.check()
    pair.disconnect()
    assert pair.slave.close()
    pair.open_slave()
    assert pair.appender.written == 0
    pair.connect()
    pair.drain()
    same(pair)
    assert pair.slave.known_gaps == ()


def test_an_empty_slave_begins_where_its_master_does_by_then(pair: Pair) -> None:
    put(pair, 60)
    master = pair.master.reader._segments
    master.take_front([0])
    pair.connect()
    assert not pair.appender.check()
    # A block begins, and the connection ends before there is room for it.
    pair.appender.block(SEGMENT, 10)
    pair.appender.room()
    master.take_front([SEGMENT])
    if pair.appender.is_empty:
        pair.connect()
        pair.drain()
        assert pair.slave.min_log_offset == 2 * SEGMENT
        assert pair.slave.marks.written == pair.master.marks.written


def test_a_slave_without_a_whole_record_may_ask_for_1_again(pair: Pair) -> None:
    put(pair, 1)
    pair.connect()
    pair.pump(most=20)
    pair.connect(1)
    pair.drain()
    same(pair)


def test_a_slave_of_an_empty_master_asks_for_1(pair: Pair) -> None:
    pair.connect(1)
    put(pair, 3)
    pair.drain()
    same(pair)


def test_a_slave_that_asked_for_0_and_is_overtaken_by_retention_is_refused(pair: Pair) -> None:
    put(pair, 60)
    follower = pair.feed.admit()
    follower.report(0)
    pair.master.reader._segments.take_front([0])
    with pytest.raises(CannotFollow) as refused:
        follower.next_piece(10)
    assert refused.value.kind is FollowError.BELOW


def test_a_segment_made_for_another_beginning_does_not_stay(pair: Pair, tmp_path: Path) -> None:
    """A start would find zeros before the log."""
    log = pair.slave.log
    assert log.segment_for_copy(0) is None
    while 0 not in pair.slave._allocator._ready:
        continue  # its thread makes the segment
    while log.segment_for_copy(4 * SEGMENT) is None:
        continue
    names = sorted(path.name for path in (tmp_path / "slave/commitlog").iterdir())
    assert f"{0:020d}" not in names
    assert f"{4 * SEGMENT:020d}" in names


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_topic_that_the_master_made_again_begins_anew_on_the_slave(
    pair: Pair, count: int
) -> None:
    for number in range(5):
        pair.master.log.put(message(b"old %d" % number))
    pair.master.dispatch()
    pair.connect()
    pair.drain()
    for _ in range(2):
        pair.master.delete_topic("Orders")
        for number in range(count):
            pair.master.log.put(message(b"new %d" % number))
            pair.master.dispatch()
            pair.drain()
        assert pair.slave.max_offset("Orders", 0) == count
    assert bodies(pair.slave, "Orders", 0) == [b"new %d" % number for number in range(count)]
    pair.disconnect()
    pair.slave.close()
    pair.open_slave()
    assert pair.slave.max_offset("Orders", 0) == count


def test_messages_of_a_topic_that_both_have_deleted_come_into_queues_made_anew(pair: Pair) -> None:
    for number in range(3):
        pair.master.log.put(message(b"old %d" % number))
    pair.master.dispatch()
    pair.connect()
    pair.drain()
    pair.master.delete_topic("Orders")
    pair.slave.delete_topic("Orders")
    pair.master.log.put(message(b"new"))
    pair.master.dispatch()
    pair.drain()
    assert bodies(pair.slave, "Orders", 0) == [b"new"]
