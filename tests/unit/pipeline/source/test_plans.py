"""Plans of batches and streams, against a real broker and without Spark."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.client.blocking_roles import Admin
from aerobee.pipeline.brokers.offsets import Mark, Offsets, Position, Queue, Range
from aerobee.pipeline.brokers.queue_offsets import first_late, offsets_at, peek
from aerobee.pipeline.decode.selection import Selection
from aerobee.pipeline.errors import DataLoss, NoSuchTopic, OptionError, Unreachable
from aerobee.pipeline.source import batch_plan, lives, stream_plan
from aerobee.pipeline.source.batch_plan import SubscribedQueues, batch_ranges
from aerobee.pipeline.source.source_options import BatchLimits
from aerobee.pipeline.source.stream_plan import StreamPlan
from aerobee.testing import RunningBroker
from tests.unit.pipeline.support import TOPIC, create, options, queue, running, send


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes are asked for each time; how old they may be has a test of its own."""
    monkeypatch.setattr(batch_plan, "ROUTES_INTERVAL_S", 0.0)


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with running() as one:
        create(one)
        yield one


def plan(broker: RunningBroker, **given: str) -> StreamPlan:
    return StreamPlan(options(broker, streaming=True, **given))


def at(offsets: Offsets, marks: dict[Queue, Mark] | None = None) -> Position:
    return Position(offsets, marks or {})


# --- batches -----------------------------------------------------------------------------------


def test_a_batch_reads_from_the_first_to_the_last_message(broker: RunningBroker) -> None:
    send(broker, [b"x"] * 5)
    assert batch_ranges(options(broker)) == [Range(queue(0), 0, 5)]


def test_offsets_choose_ends_and_leave_other_queues_whole(broker: RunningBroker) -> None:
    send(broker, [b"x"] * 5, 0)
    send(broker, [b"x"] * 3, 1)
    start = json.dumps({TOPIC: {queue(0).broker: {"0": 2}}})
    end = json.dumps({TOPIC: {queue(0).broker: {"0": 4, "1": -1}}})
    found = batch_ranges(options(broker, startingOffsets=start, endingOffsets=end))
    assert found == [Range(queue(0), 2, 4), Range(queue(1), 0, 3)]


@pytest.mark.parametrize(("start", "end", "left"), [(3, 9, (3, 5)), (7, -1, None), (7, 9, None)])
def test_a_batch_beyond_its_queue_is_lost(
    broker: RunningBroker, start: int, end: int, left: tuple[int, int] | None
) -> None:
    send(broker, [b"x"] * 5)
    given = {
        name: json.dumps({TOPIC: {queue(0).broker: {"0": offset}}})
        for name, offset in (("startingOffsets", start), ("endingOffsets", end))
    }
    with pytest.raises(DataLoss, match="queue 0"):
        batch_ranges(options(broker, **given))
    found = batch_ranges(options(broker, failOnDataLoss="false", **given))
    assert [(one.start, one.end) for one in found if one.size] == ([left] if left else [])


def test_offsets_of_a_queue_that_is_not_read_are_refused(broker: RunningBroker) -> None:
    start = json.dumps({TOPIC: {"elsewhere": {"0": 2}}})
    with pytest.raises(
        OptionError, match=r"option startingOffsets: .* broker elsewhere, queue 0 is not read here"
    ):
        batch_ranges(options(broker, startingOffsets=start))


def test_an_unknown_topic_is_named_at_planning(broker: RunningBroker) -> None:
    with pytest.raises(NoSuchTopic, match="'nothing'"):
        batch_ranges(options(broker, subscribe=f"{TOPIC},nothing"))
    with pytest.raises(NoSuchTopic, match="queue 7"):
        batch_ranges(options(broker, assign=json.dumps({TOPIC: {queue(0).broker: [0, 7]}})))


def test_a_pattern_means_all_topics_that_fit_but_those_of_the_system(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    create(broker, "orders-eu", 1)
    create(broker, "other", 1)
    for topic in (TOPIC, "orders-eu", "other"):
        send(broker, [b"x"], 0, topic)
    found = batch_ranges(options(broker, subscribePattern="orders.*"))
    assert [one.queue.topic for one in found] == [TOPIC, "orders-eu"]
    everything = batch_ranges(options(broker, subscribePattern=".*"))
    assert {one.queue.topic for one in everything} == {TOPIC, "orders-eu", "other"}
    assert batch_ranges(options(broker, subscribePattern="nothing.*")) == []
    assert "subscribePattern: 'nothing.*' matches no topic" in caplog.text


def test_a_pruned_batch_reads_no_more_than_can_match(broker: RunningBroker) -> None:
    send(broker, [b"x"] * 5, 0)
    send(broker, [b"x"] * 5, 1)
    pushed = Selection(queue_ids=frozenset({1}), start_offset=2, end_offset=4)
    assert batch_ranges(options(broker), pushed) == [Range(queue(1), 2, 4)]


# --- times -------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 20), max_size=40).map(sorted),
    st.integers(-1, 21),
    st.integers(0, 60),
    st.integers(0, 5),
)
def test_the_first_at_or_after_a_time_is_found_from_any_hint(
    times: list[int], wanted: int, hint: int, low: int
) -> None:
    found = first_late(low, low + len(times), hint, lambda offset: times[offset - low] >= wanted)
    assert found == low + next(
        (place for place, one in enumerate(times) if one >= wanted), len(times)
    )


def test_times_mean_the_first_message_at_or_after(broker: RunningBroker) -> None:
    send(broker, [b"%d" % number for number in range(200)])
    cluster = SubscribedQueues(options(broker))
    seen = peek(cluster.brokers, "g", queue(0), 0, 32)
    while len(seen) < 200:
        seen += peek(cluster.brokers, "g", queue(0), len(seen), 32)
    times = [one.store_ms for one in seen]
    for wanted in {times[0] - 1, times[0], times[77], times[77] + 1, times[-1], times[-1] + 1}:
        expected = next((place for place, one in enumerate(times) if one >= wanted), 200)
        assert offsets_at(cluster.brokers, "g", [queue(0)], wanted) == {queue(0): expected}
    assert offsets_at(cluster.brokers, "g", [queue(1)], 5) == {queue(1): 0}
    found = batch_ranges(
        options(broker, startingTimestamp=str(times[50]), endingTimestamp=str(times[150] + 1))
    )
    ((_, start, end),) = found
    assert (times[start], times[end - 1]) == (times[50], times[150])
    assert start == times.index(times[50])
    cluster.close()


def test_times_by_queue_leave_the_others_whole(broker: RunningBroker) -> None:
    send(broker, [b"x"] * 3, 0)
    send(broker, [b"x"] * 3, 1)
    cluster = SubscribedQueues(options(broker))
    last = peek(cluster.brokers, "g", queue(1), 2, 1)[0].store_ms
    cluster.close()
    times = json.dumps({TOPIC: {queue(0).broker: {"1": last + 1}}})
    assert batch_ranges(options(broker, startingOffsetsByTimestamp=times)) == [
        Range(queue(0), 0, 3)
    ]
    assert batch_ranges(options(broker, endingOffsetsByTimestamp=times)) == [
        Range(queue(0), 0, 3),
        Range(queue(1), 0, 3),
    ]
    strict = {"startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(OptionError, match=rf"queue 1: has no message stored at {last + 1} "):
        batch_ranges(options(broker, startingOffsetsByTimestamp=times, **strict))
    elsewhere = json.dumps({TOPIC: {"elsewhere": {"0": 5}}})
    with pytest.raises(
        OptionError,
        match=r"option startingOffsetsByTimestamp: .* is not read here; read are queues 0 to",
    ):
        batch_ranges(options(broker, startingOffsetsByTimestamp=elsewhere))


# --- streams -----------------------------------------------------------------------------------


def test_a_stream_starts_at_the_end_and_goes_on_to_what_is_new(broker: RunningBroker) -> None:
    send(broker, [b"x"] * 3)
    stream = plan(broker)
    assert stream.initial().offsets == {queue(0): 3, queue(1): 0}
    send(broker, [b"x"] * 4)
    assert stream.initial().offsets == {queue(0): 3, queue(1): 0}
    end = stream.latest(stream.initial())
    assert stream.ranges(stream.initial(), end) == [Range(queue(0), 3, 7)]
    assert stream.latest(end) == end
    stream.close()


def test_rows_and_bytes_of_a_batch_are_limited(broker: RunningBroker) -> None:
    send(broker, [b"x" * 1000] * 30, 0)
    send(broker, [b"x" * 1000] * 10, 1)
    stream = plan(broker, startingOffsets="earliest")
    start = stream.initial()
    assert stream.latest(start, BatchLimits(most_rows=8)).offsets == {queue(0): 6, queue(1): 2}
    by_bytes = stream.latest(start, BatchLimits(most_bytes=10_000)).offsets
    assert 6 <= sum(by_bytes.values()) <= 10
    assert sum(stream.latest(start, BatchLimits(3, 10_000)).offsets.values()) == 3
    assert stream.latest(start, BatchLimits(most_bytes=1 << 30)).offsets == {
        queue(0): 30,
        queue(1): 10,
    }
    # A message larger than the limit is a batch of its own.
    assert sum(stream.latest(start, BatchLimits(most_bytes=1)).offsets.values()) == 1
    stream.close()


def test_a_batch_waits_for_messages_but_not_for_ever(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(stream_plan.time, "monotonic", lambda: now[0])
    stream = plan(broker, startingOffsets="earliest")
    start = stream.initial()
    limits = BatchLimits(least_rows=4, delay_s=60.0)
    send(broker, [b"x"] * 3)
    assert stream.latest(start, limits) == start
    send(broker, [b"x"])
    end = stream.latest(start, limits)
    assert end.offsets == {queue(0): 4, queue(1): 0}
    now[0] += 59.0
    send(broker, [b"x"])
    assert stream.latest(end, limits) == end
    now[0] += 1.0
    assert stream.latest(end, limits).offsets == {queue(0): 5, queue(1): 0}
    assert stream.latest(start, limits._replace(most_rows=4)).offsets[queue(0)] == 4
    # A query that ends with what is there takes it all.
    stream.freeze()
    send(broker, [b"x"])
    assert stream.latest(end, limits).offsets[queue(0)] == 5
    stream.close()


def test_limits_count_what_is_there_and_not_what_retention_took(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, [b"x"] * 30)
    lowest = {queue(0): 20, queue(1): 0}
    for module in (stream_plan, batch_plan):
        monkeypatch.setattr(
            module, "min_offsets", lambda _, queues: {one: lowest[one] for one in queues}
        )
    stream = plan(broker, failOnDataLoss="false")
    start = at({queue(0): 5, queue(1): 0})
    end = stream.latest(start, BatchLimits(most_rows=4))
    assert end.offsets == {queue(0): 24, queue(1): 0}
    assert stream.ranges(start, end) == [Range(queue(0), 20, 24)]
    stream.close()
    strict = plan(broker)
    with pytest.raises(DataLoss, match="offsets 5 to 23 are wanted, the queue has 20 to 29"):
        strict.ranges(start, strict.latest(start, BatchLimits(most_rows=4)))
    strict.close()


def test_a_start_that_the_queue_does_not_have_is_lost_data(broker: RunningBroker) -> None:
    send(broker, [b"x"] * 5)
    beyond = json.dumps({TOPIC: {queue(0).broker: {"0": 9}}})
    strict = plan(broker, startingOffsets=beyond)
    start = strict.initial()
    with pytest.raises(DataLoss, match="queue 0: is to be read on from offset 9, but ends at 5"):
        strict.ranges(start, strict.latest(start))
    strict.close()
    tolerant = plan(broker, startingOffsets=beyond, failOnDataLoss="false")
    start = tolerant.initial()
    end = tolerant.latest(start)
    assert tolerant.ranges(start, end) == []
    send(broker, [b"x"] * 2)
    assert tolerant.ranges(end, tolerant.latest(end)) == [Range(queue(0), 5, 7)]
    tolerant.close()


def test_new_queues_and_topics_begin_at_their_minimum(broker: RunningBroker) -> None:
    stream = plan(broker, subscribePattern="orders.*")
    start = stream.initial()
    create(broker, "orders-new", 1)
    create(broker, TOPIC, 3)
    send(broker, [b"x"] * 4, 0, "orders-new")
    send(broker, [b"x"] * 2, 2)
    limited = stream.latest(start, BatchLimits(most_rows=3))
    assert sum(limited.offsets.values()) == 3
    end = stream.latest(start)
    found = stream.ranges(start, end)
    assert found == [Range(queue(2), 0, 2), Range(queue(0, "orders-new"), 0, 4)]
    stream.close()


def test_a_target_is_not_passed_and_is_reached(broker: RunningBroker) -> None:
    send(broker, [b"x"] * 5)
    stream = plan(broker, startingOffsets="earliest")
    stream.freeze()
    position = stream.initial()
    send(broker, [b"x"] * 5)
    create(broker, TOPIC, 3)
    send(broker, [b"x"] * 5, 2)
    for _ in range(3):
        position = stream.latest(position, BatchLimits(most_rows=2))
    assert position.offsets == {queue(0): 5, queue(1): 0}
    assert stream.latest(position, BatchLimits(most_rows=2)) == position
    stream.close()


def test_the_routes_are_not_asked_for_at_each_batch(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_plan, "ROUTES_INTERVAL_S", 3600.0)
    stream = plan(broker)
    start = stream.initial()
    create(broker, TOPIC, 3)
    assert stream.latest(start) == start
    stream.close()


def test_a_poll_without_news_is_quick(broker: RunningBroker) -> None:
    stream = plan(broker)
    start = stream.initial()
    began = time.perf_counter()
    for _ in range(50):
        stream.latest(start)
    assert time.perf_counter() - began < 2
    stream.close()


# --- the start, pinned -------------------------------------------------------------------------


def started_again(broker: RunningBroker, **given: str) -> dict[Queue, int]:
    stream = plan(broker, **given)
    try:
        return stream.initial().offsets
    finally:
        stream.close()


@pytest.mark.parametrize("where", ["group", "file"])
def test_a_start_that_moves_is_the_same_after_a_crash(
    broker: RunningBroker, tmp_path: Path, where: str
) -> None:
    given = (
        {"consumerGroup": "g"} if where == "group" else {"startStateLocation": f"{tmp_path}/start"}
    )
    send(broker, [b"x"] * 3)
    first = started_again(broker, **given)
    assert first == {queue(0): 3, queue(1): 0}
    send(broker, [b"x"] * 4)
    send(broker, [b"x"] * 4, 1)
    assert started_again(broker, **given) == first
    # A start that does not ask where to begin shows that batch 0 is done.
    later = plan(broker, **given)
    later.ranges(at(first), later.latest(at(first)))
    later.close()
    assert started_again(broker, **given) == {queue(0): 7, queue(1): 4}


@pytest.mark.parametrize("start", [{}, {"startingTimestamp": "9000000000000"}])
def test_an_end_asked_for_before_the_start_is_not_before_it(
    broker: RunningBroker, start: dict[str, str]
) -> None:
    """PySpark 4.0 plans the end of batch 0 first, and messages may come in between."""
    send(broker, [b"x"] * 3)
    stream = plan(broker, **start)
    end = stream.latest(None)
    send(broker, [b"x"] * 2)
    assert stream.initial().offsets == end.offsets == {queue(0): 3, queue(1): 0}
    assert stream.ranges(stream.initial(), end) == []
    assert stream.ranges(end, stream.latest(None)) == [Range(queue(0), 3, 5)]
    stream.close()


@pytest.mark.parametrize("where", ["group", "file"])
def test_a_start_is_kept_before_an_end_is_told(
    broker: RunningBroker, tmp_path: Path, where: str
) -> None:
    given = (
        {"consumerGroup": "g"} if where == "group" else {"startStateLocation": f"{tmp_path}/start"}
    )
    first = plan(broker, **given)
    end = first.latest(None)
    first.close()  # a crash: Spark has the end of batch 0, and asks for the start next time
    send(broker, [b"x"] * 4)
    # PySpark 4.0 tells a restart how far was planned, by asking for an empty batch there.
    again = plan(broker, **given)
    assert again.ranges(end, end) == []
    assert again.initial().offsets == end.offsets
    again.close()
    # A batch that begins elsewhere shows that batch 0 is done, although no start was told.
    later = plan(broker, **given)
    later.ranges(end, later.latest(None))
    later.close()
    assert started_again(broker, **given) == {queue(0): 4, queue(1): 0}


def test_a_pinned_start_of_zero_is_pinned(broker: RunningBroker) -> None:
    assert started_again(broker, consumerGroup="g") == {queue(0): 0, queue(1): 0}
    send(broker, [b"x"] * 4)
    assert started_again(broker, consumerGroup="g") == {queue(0): 0, queue(1): 0}
    assert started_again(broker, consumerGroup="other") == {queue(0): 4, queue(1): 0}


def test_a_stable_start_writes_nothing(broker: RunningBroker, tmp_path: Path) -> None:
    given = {"startStateLocation": str(tmp_path / "start"), "startingOffsets": "earliest"}
    started_again(broker, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_holds_no_start_is_said(broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "start").write_text("[1]")
    with pytest.raises(OptionError, match=r"startStateLocation.*does not hold offsets"):
        started_again(broker, startStateLocation=str(tmp_path / "start"))
    with pytest.raises(OptionError, match="must be a file"):
        started_again(broker, startStateLocation="s3://bucket/start")


def test_without_a_place_a_moved_start_is_an_error_not_a_skip(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "aerobee.pipeline"):
        first = started_again(broker)
    assert "consumerGroup" in caplog.text
    send(broker, [b"x"] * 2)
    planned = {**first, queue(0): 2}
    send(broker, [b"x"] * 3)
    restarted = plan(broker, failOnDataLoss="false")
    with pytest.raises(DataLoss, match="start was resolved anew, at 5"):
        restarted.ranges(restarted.initial(), at(planned))
    restarted.close()


# --- lost data, and brokers that are away ------------------------------------------------------


def test_an_end_below_the_checkpoint_is_lost_data(broker: RunningBroker) -> None:
    send(broker, [b"x"] * 3)
    checkpoint = at({queue(0): 9, queue(1): 0})
    with pytest.raises(DataLoss, match="read on from offset 9, but ends at 3"):
        plan(broker).latest(checkpoint)
    tolerant = plan(broker, failOnDataLoss="false")
    end = tolerant.latest(checkpoint)
    assert end.offsets == {queue(0): 3, queue(1): 0}
    # Nothing tells why: rather what was read before, once more, than what is new never.
    assert tolerant.ranges(checkpoint, end) == [Range(queue(0), 0, 3)]
    send(broker, [b"x"] * 2)
    assert tolerant.ranges(end, tolerant.latest(end)) == [Range(queue(0), 3, 5)]
    tolerant.close()


def made_again(broker: RunningBroker, messages: int) -> None:
    """Delete the topic, make it anew, and send this number of messages to its queue 0."""
    with Admin(broker.name_server) as admin:
        admin.delete_topic(TOPIC)
    create(broker)
    send(broker, [b"new"] * messages)


def read_on(
    broker: RunningBroker, checkpoint: Position, **given: str
) -> tuple[list[Range], list[Range]]:
    """The ranges that the next two batches of a query that starts again read."""
    stream = plan(broker, **given)
    try:
        end = stream.latest(checkpoint)
        first = stream.ranges(checkpoint, end)
        return first, stream.ranges(end, stream.latest(end))
    finally:
        stream.close()


@pytest.mark.parametrize("messages", [2, 5, 7])
def test_a_topic_that_was_made_again_is_lost_data_and_read_from_its_first_message(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture, messages: int
) -> None:
    """Shorter than the checkpoint, as long, and longer: by offsets alone the last is not seen."""
    send(broker, [b"old"] * 5)
    before = plan(broker, startingOffsets="earliest")
    checkpoint = before.latest(before.initial())
    before.close()
    made_again(broker, messages)
    with pytest.raises(DataLoss, match=r"orders, .*queue 0: the last message read, 4, was"):
        read_on(broker, checkpoint)
    found = read_on(broker, checkpoint, failOnDataLoss="false")
    assert found == ([Range(queue(0), 0, messages)], [])
    assert f"reading goes on at offset 0, with {messages} messages" in caplog.text


def test_limits_count_from_the_first_message_of_a_topic_made_again(broker: RunningBroker) -> None:
    send(broker, [b"old"] * 5)
    stream = plan(broker, startingOffsets="earliest", failOnDataLoss="false")
    checkpoint = stream.latest(stream.initial())
    made_again(broker, 9)
    position, read = checkpoint, []
    for _ in range(4):
        end = stream.latest(position, BatchLimits(most_rows=4))
        read += [(one.start, one.end) for one in stream.ranges(position, end)]
        position = end
    assert read == [(0, 4), (4, 8), (8, 9)]
    stream.close()


def test_a_topic_is_made_again_under_a_running_stream_that_waits(broker: RunningBroker) -> None:
    send(broker, [b"old"] * 5)
    stream = plan(broker, startingOffsets="earliest")
    position = stream.latest(stream.initial())
    assert stream.latest(position) == position
    made_again(broker, 6)
    with pytest.raises(DataLoss, match="deleted and made again"):
        stream.ranges(position, stream.latest(position))
    stream.close()


def test_a_batch_that_was_planned_before_a_topic_was_made_again_reads_nothing_of_the_new_one(
    broker: RunningBroker,
) -> None:
    """Spark plans, is killed, and runs the same batch again: a part of its rows may be out."""
    send(broker, [b"old"] * 3)
    first = plan(broker, startingOffsets="earliest")
    start = first.initial()
    planned = first.latest(start)
    first.close()
    made_again(broker, 7)
    with pytest.raises(DataLoss, match="what this batch was to read is lost"):
        plan(broker).ranges(start, planned)
    again = plan(broker, failOnDataLoss="false")
    assert again.ranges(start, planned) == []
    assert again.ranges(planned, again.latest(planned)) == [Range(queue(0), 0, 7)]
    again.close()


def test_messages_that_a_power_cut_took_back_are_not_read_twice(broker: RunningBroker) -> None:
    """The checkpoint knows two messages more than the queue, stored after all that is left."""
    send(broker, [b"x"] * 3)
    stream = plan(broker, startingOffsets="earliest")
    left = stream.latest(stream.initial())
    mark = left.marks[queue(0)]
    lost = Mark(mark.log_offset + 500, mark.store_ms + 1)
    checkpoint = at({queue(0): 5, queue(1): 0}, {queue(0): lost})
    stream.close()
    with pytest.raises(DataLoss, match=r"the last message read, 4, .* it is not there"):
        read_on(broker, checkpoint)
    tolerant = plan(broker, failOnDataLoss="false")
    end = tolerant.latest(checkpoint)
    assert tolerant.ranges(checkpoint, end) == []
    wait_until_after(lost.store_ms)
    send(broker, [b"new"] * 4)
    assert tolerant.ranges(end, tolerant.latest(end)) == [Range(queue(0), 3, 7)]
    tolerant.close()
    # This holds too if nobody looked before the queue was longer than the checkpoint again.
    found = read_on(broker, checkpoint, failOnDataLoss="false")
    assert found == ([Range(queue(0), 3, 7)], [])


def wait_until_after(time_ms: int) -> None:
    while time.time() * 1000 <= time_ms + 1:
        time.sleep(0.001)


def test_what_retention_took_is_no_other_life(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of which everything is gone keeps its mark, and with it the same text for Spark."""
    send(broker, [b"x"] * 5)
    stream = plan(broker, startingOffsets="earliest")
    position = stream.latest(stream.initial())
    monkeypatch.setattr(lives, "messages_at", lambda *_: {})
    monkeypatch.setattr(lives, "LOOK_S", -1.0)
    assert stream.latest(position) == position
    assert stream.ranges(position, stream.latest(position)) == []
    stream.close()


def test_a_checkpoint_of_another_topic_is_refused(broker: RunningBroker) -> None:
    create(broker, "payments", 1)
    stream = plan(broker, subscribe="payments")
    with pytest.raises(OptionError, match=r"the checkpoint is of topic orders, .* of its own"):
        stream.latest(at({queue(0): 3}))
    stream.close()
    both = plan(broker, subscribe="payments,orders")
    both.latest(at({queue(0): 0}))
    both.close()


def test_a_queue_that_its_topic_does_not_have_any_more_is_lost_data(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    start = at({queue(0): 0, queue(1): 0, queue(5): 4})
    with pytest.raises(DataLoss, match="queue 5: was read up to offset 4, and its topic has no"):
        plan(broker).latest(start)
    tolerant = plan(broker, failOnDataLoss="false")
    assert tolerant.latest(start) == tolerant.latest(start) == start
    assert caplog.text.count("queue 5") == 1
    tolerant.close()


def test_a_queue_without_a_route_keeps_its_offset(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, [b"x"] * 3)
    away = Queue(TOPIC, "away", 4)
    stream = plan(broker)
    start = at({queue(0): 1, queue(1): 0, away: 77})
    end = stream.latest(start)
    assert end.offsets == {queue(0): 3, queue(1): 0, away: 77}
    assert stream.ranges(start, end) == [Range(queue(0), 1, 3)]
    # Before 4.2 Spark tells no start: the seen offsets count.
    assert stream.latest(None) == end
    stream.close()


def test_a_topic_that_lost_its_route_stops_no_stream(broker: RunningBroker) -> None:
    gone = Queue("gone", "away", 0)
    stream = plan(broker, subscribe=f"{TOPIC},gone")
    start = at({queue(0): 0, queue(1): 0, gone: 5})
    assert stream.latest(start) == start
    stream.close()
    with pytest.raises(NoSuchTopic):
        plan(broker, subscribe=f"{TOPIC},gone").initial()


def test_the_advice_about_a_topic_that_is_not_there_can_be_followed(broker: RunningBroker) -> None:
    with pytest.raises(NoSuchTopic, match="'aerobee topic create gone' makes it"):
        plan(broker, subscribe="gone").initial()
    with pytest.raises(NoSuchTopic, match=r"'orders\.eu'; no topic can have that name: .*char"):
        plan(broker, subscribe="orders.eu").initial()


def test_a_broker_that_went_away_is_an_error_that_names_it() -> None:
    with running() as broker:
        create(broker)
        stream = plan(broker, pullTimeoutMs="30")
        start = stream.initial()
        assert stream.latest(start) == start
    with pytest.raises(Unreachable, match=broker.broker.replace(".", r"\.")):
        stream.latest(start)
    stream.close()


def test_offsets_are_committed_for_display(broker: RunningBroker) -> None:
    from aerobee.pipeline.brokers.queue_offsets import group_offsets

    send(broker, [b"x"] * 41)
    stream = plan(broker, consumerGroup="shown", commitOffsetsToBroker="true")
    stream.done(at({queue(0): 41, queue(1): 0}))
    cluster = SubscribedQueues(options(broker))
    found = group_offsets(cluster.brokers, "shown", [queue(0), queue(1)])
    assert found == {queue(0): 41, queue(1): 0}
    cluster.close()
    stream.close()
