"""Staged batches: visible only once decided, then each row once, whatever is repeated."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aerobee.broker.routing.role import Role
from aerobee.broker.staging import publish as stage_publish
from aerobee.broker.staging import stage_table as table
from aerobee.broker.staging.answers import StageAnswers
from aerobee.broker.staging.finished import LastBatch
from aerobee.broker.staging.finished_batches import StageChanges, StageFile
from aerobee.broker.staging.stage_table import Decision
from aerobee.config.model import Settings
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.stages import (
    StageCapability,
    StageChunkHeader,
    StagePart,
    chunk_crc,
    decode_parts,
    encode_chunk,
    encode_names,
    encode_parts,
)
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.names import SCHEDULE_TOPIC, STAGE_TOPIC
from aerobee.remoting.turns import Steps
from aerobee.store.errors import MessageIllegal, StoreClosed
from aerobee.store.segments.results import PutResult
from tests.inline_loop import drive
from tests.unit.broker.staging.staging_support import BROKER, Desk, rows, runs_of, texts
from tests.unit.store.support import read_all

KEY = ("query-1", 7)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_publish, "_SLICE_ROWS", 3)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "store").start()
    yield made
    made.close()


def test_a_broker_says_what_it_takes(desk: Desk) -> None:
    answer = desk.call(RequestCode.STAGE_CAPABILITY, {})
    assert answer is not None
    told = StageCapability.from_ext(answer.ext)
    assert (told.protocol, told.broker_name, told.delay) == (1, BROKER, False)
    assert told.expiry_ms == 86_400_000


def test_staged_rows_are_invisible_until_they_are_decided(desk: Desk) -> None:
    given = rows("a", 10)
    part = desk.stage(KEY, 0, given)
    desk.settle()
    assert desk.bodies() == []
    assert desk.topics.get(STAGE_TOPIC) is None
    desk.intent(KEY, [part])
    desk.settle()
    assert desk.bodies() == texts(given)
    assert desk.state(KEY) == "done"
    assert desk.staging.table.staged_bytes == 0


def test_rows_of_one_queue_keep_their_order(desk: Desk) -> None:
    given = rows("a", 20, queues=1)
    desk.intent(KEY, [desk.stage(KEY, 0, given)])
    desk.settle()
    found = [text.split("/")[2].encode() for text in desk.bodies()]
    assert found == [body for _, _, body in given]


def test_a_batch_may_go_to_several_topics(desk: Desk) -> None:
    given = rows("a", 5) + rows("b", 5, "Audit")
    desk.intent(KEY, [desk.stage(KEY, 0, given[::2]), desk.stage(KEY, 1, given[1::2])])
    desk.settle()
    assert desk.bodies() == texts(given)


def test_a_commit_is_answered_when_it_is_durable(desk: Desk) -> None:
    part = desk.stage(KEY, 0, rows("a", 5))
    desk.intent(KEY, [part])
    desk.sync()
    (answer,) = desk.peer.received
    assert (answer.code, answer.ext["state"], answer.ext["existed"]) == (0, "open", "false")
    assert decode_parts(answer.body) == [part]


def test_a_status_waits_until_the_batch_is_done(desk: Desk) -> None:
    desk.intent(KEY, [desk.stage(KEY, 0, rows("a", 5))])
    desk.sync()
    desk.peer.received.clear()
    assert desk.status(KEY, wait_ms=5_000) is None
    desk.settle()
    (answer,) = desk.peer.received
    assert answer.ext["state"] == "done"


def test_an_answer_that_cannot_be_made_keeps_none_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.intent(KEY, [desk.stage(KEY, 0, rows("a", 5))])
    desk.sync()
    desk.peer.received.clear()
    for _ in range(2):
        assert desk.status(KEY, wait_ms=5_000) is None
    answer, faults = StageAnswers.answer, [ZeroDivisionError("a bug")]

    def faulty(waits: StageAnswers, *args: Any, **options: Any) -> bytes:
        if faults:
            raise faults.pop()
        return answer(waits, *args, **options)

    monkeypatch.setattr(StageAnswers, "answer", faulty)
    desk.settle()
    desk.send_ready()
    first, second = desk.peer.received
    assert first.code == ResponseCode.SYSTEM_ERROR
    assert (second.code, second.ext["state"]) == (0, "done")


def test_a_status_is_answered_open_when_its_time_is_over(desk: Desk) -> None:
    desk.intent(KEY, [desk.stage(KEY, 0, rows("a", 5))])
    desk.sync()
    desk.peer.received.clear()
    assert desk.status(KEY, wait_ms=5_000) is None
    desk.loop.now += 6
    desk.send_ready()
    (answer,) = desk.peer.received
    assert (answer.ext["state"], answer.ext["published"], answer.ext["rows"]) == ("open", "0", "5")


def test_a_repeated_commit_changes_nothing(desk: Desk) -> None:
    given = rows("a", 7)
    part = desk.stage(KEY, 0, given)
    for _ in range(3):
        desk.intent(KEY, [part])
        desk.settle()
    assert desk.bodies() == texts(given)
    assert [answer.ext["existed"] for answer in desk.peer.received] == ["false", "true", "true"]


@pytest.mark.parametrize("published", [False, True])
def test_the_first_of_two_intents_counts(desk: Desk, published: bool) -> None:
    first, second = rows("first", 7), rows("second", 7)
    desk.intent(KEY, [desk.stage(KEY, 0, first)])
    if published:
        desk.settle()
    again = desk.stage(KEY, 0, second)
    desk.intent(KEY, [again])
    desk.settle()
    assert desk.bodies() == texts(first)
    assert desk.staging.table.stages == {}


def test_of_two_intents_in_the_log_the_first_counts(desk: Desk) -> None:
    given = rows("first", 7)
    first, second = desk.stage(KEY, 0, given), desk.stage(KEY, 0, rows("second", 7))
    for part in (first, second):
        desk.staging._log.intent(Decision(KEY, (part,)))
    desk.sync()
    desk.close()
    again = Desk(desk.path).start()
    again.settle()
    assert again.bodies() == texts(given)
    again.close()


def test_tries_that_no_intent_names_are_dropped_with_the_decision(desk: Desk) -> None:
    given = rows("a", 7)
    desk.stage(KEY, 0, rows("failed", 3))
    part = desk.stage(KEY, 0, given)
    desk.stage(KEY, 0, rows("speculative", 7))
    other = desk.stage(("query-2", 7), 0, rows("other", 7))
    desk.intent(KEY, [part])
    desk.settle()
    assert desk.bodies() == texts(given)
    assert list(desk.staging.table.stages) == [other.stage]


def test_an_abort_drops_what_was_staged(desk: Desk) -> None:
    part = desk.stage(KEY, 0, rows("a", 7))
    assert desk.abort(KEY, [part.stage]).ext["state"] == "none"
    with pytest.raises(BadRequest, match="it was given up") as refused:
        desk.intent(KEY, [part])
    assert refused.value.code == ResponseCode.STAGE_INCOMPLETE
    desk.settle()
    assert desk.bodies() == []
    assert desk.staging.table.staged_bytes == 0


def test_an_abort_after_the_commit_does_nothing(desk: Desk) -> None:
    given = rows("a", 7)
    part = desk.stage(KEY, 0, given)
    desk.intent(KEY, [part])
    assert desk.abort(KEY, [part.stage]).ext["state"] == "open"
    desk.settle()
    assert desk.abort(KEY, [part.stage]).ext["state"] == "done"
    assert desk.bodies() == texts(given)


def test_an_aborted_stage_of_another_broker_cannot_be_decided_later(desk: Desk) -> None:
    part = StagePart("b-b", 0, uuid.uuid4().hex, 1, 1, 0)
    desk.abort(KEY, [part.stage])
    with pytest.raises(BadRequest, match="it was given up"):
        desk.intent(KEY, [part])


def test_concurrent_stages_of_queries_do_not_mix(desk: Desk) -> None:
    keys = [(f"query-{n}", 7) for n in range(5)]
    given = {key: rows(key[0], 11) for key in keys}
    parts = {key: [] for key in keys}  # type: ignore[var-annotated]
    for number in range(3):
        for key in keys:
            parts[key].append(desk.stage(key, number, given[key][number::3]))
    for key in keys[:4]:
        desk.intent(key, parts[key])
    desk.settle()
    assert desk.bodies() == texts([row for key in keys[:4] for row in given[key]])


def test_queries_take_turns(desk: Desk) -> None:
    long, short = rows("long", 60), rows("short", 3)
    desk.intent(("long", 0), [desk.stage(("long", 0), 0, long)])
    desk.intent(("short", 0), [desk.stage(("short", 0), 0, short)])
    for _ in range(6):
        desk.loop.turn()
    found = desk.bodies()
    assert set(texts(short)) <= set(found)
    assert len(found) < 20


def test_a_chunk_sent_again_is_stored_once(desk: Desk) -> None:
    stage = uuid.uuid4().hex
    given = rows("a", 4)
    crcs = [desk.chunk(KEY, 0, stage, 0, given) for _ in range(3)]
    assert len(set(crcs)) == 1
    assert desk.staging.table.chunks == 1
    with pytest.raises(BadRequest) as refused:
        desk.chunk(KEY, 0, stage, 0, rows("b", 4))
    assert refused.value.code == ResponseCode.STAGE_CLOSED


def test_chunks_may_arrive_in_any_order(desk: Desk) -> None:
    from aerobee.protocol.headers.stages import stage_checksum

    stage = uuid.uuid4().hex
    given = rows("a", 12, queues=1)
    crcs = {n: desk.chunk(KEY, 0, stage, n, given[n * 4 :][:4]) for n in (2, 0, 1)}
    checksum = stage_checksum(crcs[n] for n in range(3))
    desk.intent(KEY, [StagePart(BROKER, 0, stage, 3, 12, checksum)])
    desk.settle()
    assert [text.split("/")[2] for text in desk.bodies()] == [row[2].decode() for row in given]


@pytest.mark.parametrize("change", ["chunks", "rows", "checksum", "stage"])
def test_an_intent_for_what_is_not_all_there_is_refused(desk: Desk, change: str) -> None:
    import msgspec

    part = desk.stage(KEY, 0, rows("a", 7))
    wrong = uuid.uuid4().hex if change == "stage" else getattr(part, change) + 1
    with pytest.raises(BadRequest) as refused:
        desk.intent(KEY, [msgspec.structs.replace(part, **{change: wrong})])
    assert refused.value.code == ResponseCode.STAGE_INCOMPLETE
    assert desk.state(KEY) == "none"


def test_rows_of_a_decided_batch_are_thrown_away(desk: Desk) -> None:
    desk.intent(KEY, [desk.stage(KEY, 0, rows("a", 7))])
    desk.settle()
    written = desk.store.written
    desk.stage(KEY, 0, rows("again", 7))
    desk.stage((KEY[0], 3), 0, rows("before", 7))
    assert desk.store.written == written
    assert desk.state((KEY[0], 3)) == "done"
    assert desk.state((KEY[0], 8)) == "none"


def test_stages_expire(desk: Desk) -> None:
    desk.stage(KEY, 0, rows("old", 3))
    stage = next(iter(desk.staging.table.stages.values()))
    stage.touched_ms = desk.now_ms - 86_400_001
    fresh = desk.stage(KEY, 1, rows("fresh", 3))
    desk.staging.table.stages[fresh.stage].touched_ms = desk.now_ms
    desk.staging._expire()
    assert list(desk.staging.table.stages) == [fresh.stage]


def test_an_empty_batch_is_a_batch(desk: Desk) -> None:
    desk.intent(KEY, [])
    desk.settle()
    assert desk.state(KEY) == "done"
    assert desk.bodies() == []


def test_there_is_a_limit_to_what_is_staged(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "store", stage_max_bytes=1000).start()
    first = desk.stage(KEY, 0, rows("a", 4))
    with pytest.raises(BadRequest, match=r"stage\.max_bytes") as refused:
        desk.stage(KEY, 1, rows("b", 16), size=16)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    desk.abort(KEY, [first.stage])
    desk.stage(KEY, 1, rows("b", 4))
    desk.close()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((STAGE_TOPIC, 0, b"x"), "forbidden"),
        (("%RETRY%g", 0, b"x"), "forbidden"),
        (("Orders", 4, b"x"), "4 write queues"),
        (("Orders", -1, b"x"), "illegal"),
        (("Or.ders", 0, b"x"), "characters"),
        (("Orders", 0, b"x" * 2999), "maxMessageSize"),
    ],
)
def test_what_a_send_would_be_refused_for_is_refused(
    desk: Desk, given: tuple[str, int, bytes], reason: str
) -> None:
    with pytest.raises(BadRequest, match=reason):
        desk.stage(KEY, 0, [given])
    assert desk.staging.table.stages == {}


@pytest.mark.parametrize("properties", ["DELAY\x013", "a\x01b\x02TRAN_MSG\x01true"])
def test_rows_that_ask_for_more_than_to_be_stored_are_refused(desk: Desk, properties: str) -> None:
    from aerobee.protocol.headers.stages import Run
    from aerobee.protocol.message.batch import BatchItem, encode_batch

    items = encode_batch([BatchItem(0, b"x", properties.encode())])
    body = encode_chunk([Run("Orders", 0, 1, items)])
    header = StageChunkHeader(*KEY, 0, uuid.uuid4().hex, 0, 1, chunk_crc(body))
    with pytest.raises(BadRequest) as refused:
        desk.call(RequestCode.STAGE_CHUNK, header.to_ext(), body)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_damaged_chunk_is_refused(desk: Desk) -> None:
    body = encode_chunk(runs_of(rows("a", 3)))
    header = StageChunkHeader(*KEY, 0, uuid.uuid4().hex, 0, 3, chunk_crc(body))
    for cut in range(len(body)):
        with pytest.raises(BadRequest):
            desk.call(RequestCode.STAGE_CHUNK, header.to_ext(), body[:cut])
        short = StageChunkHeader(*KEY, 0, header.stage, 0, 3, chunk_crc(body[:cut]))
        with pytest.raises(BadRequest):
            desk.call(RequestCode.STAGE_CHUNK, short.to_ext(), body[:cut])
    assert desk.staging.table.stages == {}


@pytest.mark.parametrize(
    ("query", "batch", "stage"),
    [("", 0, "a" * 32), ("a/b", 0, "a" * 32), ("q", -1, "a" * 32), ("q", 0, "A" * 32)],
)
def test_names_that_are_none_are_refused(desk: Desk, query: str, batch: int, stage: str) -> None:
    body = encode_chunk(runs_of(rows("a", 1)))
    header = StageChunkHeader(query, batch, 0, stage, 0, 1, chunk_crc(body))
    with pytest.raises(BadRequest):
        desk.call(RequestCode.STAGE_CHUNK, header.to_ext(), body)


def test_publishing_waits_for_room(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from aerobee.store.errors import StoreNotWritable

    given = rows("a", 20)
    desk.intent(KEY, [desk.stage(KEY, 0, given)])
    real_put, real_batch, left = desk.store.log.put, desk.store.log.put_batch, [6]

    def refuse_now_and_then(call):  # type: ignore[no-untyped-def]
        def put(message):  # type: ignore[no-untyped-def]
            left[0] -= 1
            if left[0] % 3 == 0 and left[0] > -60:
                raise StoreNotWritable("the disk is full")
            return call(message)

        return put

    monkeypatch.setattr(desk.store.log, "put", refuse_now_and_then(real_put))
    monkeypatch.setattr(desk.store.log, "put_batch", refuse_now_and_then(real_batch))
    desk.settle()
    assert desk.bodies() == texts(given)
    assert desk.state(KEY) == "done"


def test_a_row_that_can_never_be_stored_is_passed_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows("a", 20, queues=1)
    desk.intent(KEY, [desk.stage(KEY, 0, given)])
    real_put, real_batch = desk.store.log.put, desk.store.log.put_batch

    def put(message):  # type: ignore[no-untyped-def]
        if message.body == b"a-007":
            raise MessageIllegal("too large")
        return real_put(message)

    def put_batch(messages):  # type: ignore[no-untyped-def]
        if any(message.body == b"a-007" for message in messages):
            raise MessageIllegal("too large")
        return real_batch(messages)

    monkeypatch.setattr(desk.store.log, "put", put)
    monkeypatch.setattr(desk.store.log, "put_batch", put_batch)
    desk.settle()
    assert desk.bodies() == texts(given[:7] + given[8:])
    assert desk.staging.publisher.lost_rows == 1


def test_a_row_that_is_passed_over_is_not_counted_as_moved(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows("a", 20, queues=4)
    desk.intent(KEY, [desk.stage(KEY, 0, given)])
    desk.topics.update(TopicConfig("Orders", 1, 1)).result()
    real = desk.store.log.put

    def put(message: StoreMessage) -> PutResult:
        if message.body == b"a-007":
            raise MessageIllegal("too large")
        return real(message)

    monkeypatch.setattr(desk.store.log, "put", put)
    desk.settle()
    assert len(desk.bodies()) == 19
    assert desk.staging.publisher.lost_rows == 1
    elsewhere = [queue for _, queue, body in given if queue and body != b"a-007"]
    assert desk.second_step.counts.moved["staged"] == len(elsewhere)


def test_the_missing_rows_of_a_lost_chunk_are_passed_over_together(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They were taken one by one, each with a line, from the front of a list that held them all."""
    part = desk.stage(KEY, 0, given := rows("a", 12))
    desk.intent(KEY, [part])
    stage = desk.staging.table.stages[part.stage]
    stage.published, stage.missing = 12, deque([0, 2, *range(4, 10)])
    lost = stage.chunks[1].log_offset
    real = desk.store.reader.record_at
    monkeypatch.setattr(
        desk.store.reader, "record_at", lambda offset: None if offset == lost else real(offset)
    )
    desk.settle()
    assert desk.state(KEY) == "done"
    assert desk.bodies() == texts([given[0], given[2], *given[8:10]])
    assert desk.staging.publisher.lost_rows == 4
    (line,) = [line for line in caplog.messages if "staged rows lost" in line]
    assert "first=4 rows=4 reason=its chunk is lost" in line


def test_a_broker_that_delays_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "store", delays=True)
    answer = desk.call(RequestCode.STAGE_CAPABILITY, {})
    assert answer is not None
    assert StageCapability.from_ext(answer.ext).delay
    desk.close()


def test_delayed_rows_wait_where_their_level_says(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "store", delays=True).start()
    given = rows("a", 3) + rows("late3", 5) + rows("late9", 2, "Audit") + rows("late0", 2)
    desk.intent(KEY, [desk.stage(KEY, 0, given)])
    desk.settle()
    assert desk.state(KEY) == "done"
    assert desk.bodies() == texts(given[:3] + given[-2:])
    assert desk.waiting() == texts(given[3:-2])
    assert [len(read_all(desk.store, SCHEDULE_TOPIC, queue)) for queue in (2, 8)] == [5, 2]
    (late, *_) = read_all(desk.store, SCHEDULE_TOPIC, 8)
    assert late.properties["DELAY"] == "9"
    assert (late.properties["UNIQ_KEY"], late.properties["TAGS"]) == ("late9-000", "T")
    desk.close()


def test_levels_may_be_other_ones_after_a_kill(tmp_path: Path) -> None:
    given = rows("late3", 6) + rows("b", 2)
    desk = Desk(tmp_path / "store", delays=True, message_delay_levels="1s 5s 10s").start()
    desk.intent(KEY, [desk.stage(KEY, 0, given)])
    left = [3]  # the slice's mark and two of its rows

    def put(message):  # type: ignore[no-untyped-def]
        left[0] -= 1
        if left[0] < 0:
            raise StoreClosed("killed")
        return real(message)

    real, desk.store.log.put = desk.store.log.put, put  # type: ignore[method-assign]
    desk.settle()
    desk.close()
    desk = Desk(tmp_path / "store", delays=True, message_delay_levels="1s").start()
    desk.settle()
    assert [len(read_all(desk.store, SCHEDULE_TOPIC, queue)) for queue in (2, 0)] == [2, 4]
    assert desk.waiting() == texts(given[:6])
    assert desk.bodies() == texts(given[6:])
    desk.close()


@pytest.mark.parametrize("puts", range(1, 12))
def test_a_topic_that_has_other_queues_after_a_kill_has_each_row_once(
    tmp_path: Path, puts: int
) -> None:
    """Rows are known again by what they hold, wherever they were put."""
    given = rows("a", 8)
    desk = Desk(tmp_path / "store").start()
    desk.intent(KEY, [desk.stage(KEY, 0, given)])
    desk.topics.update(TopicConfig("Orders", 1, 1)).result()
    real, left = desk.store.log.put, iter(range(puts))

    def put(message: StoreMessage) -> PutResult:
        if next(left, None) is None:
            raise StoreClosed("killed")
        return real(message)

    desk.store.log.put = put  # type: ignore[method-assign]
    desk.settle()
    desk.close()
    desk = Desk(tmp_path / "store").start()
    desk.settle()
    assert desk.state(KEY) == "done"
    assert sorted(text.split("/")[2] for text in desk.bodies()) == [
        row[2].decode() for row in given
    ]
    assert desk.staging.publisher.lost_rows == 0
    desk.close()


def test_rows_of_a_deleted_topic_are_dropped_and_the_others_published(desk: Desk) -> None:
    given = rows("a", 4) + rows("b", 4, "Audit") + rows("c", 4)
    part = desk.stage(KEY, 0, given, size=12)
    desk.deleted.add("Audit", desk.store.written)
    desk.intent(KEY, [part])
    desk.settle()
    assert desk.state(KEY) == "done"
    assert desk.bodies() == texts(given[:4] + given[8:])
    assert desk.second_step.counts.dropped["staged"] == 4
    assert desk.staging.publisher.lost_rows == 0


def test_a_batch_whose_topic_was_deleted_is_refused_where_nobody_has_decided_it(desk: Desk) -> None:
    """It was accepted before, and its rows dropped: the job learnt nothing."""
    part = desk.stage(KEY, 0, rows("a", 4) + rows("b", 4, "Audit"))
    desk.deleted.add("Audit", desk.store.written)
    end = desk.store.written
    with pytest.raises(BadRequest, match=r"the topic\[Audit\].* was deleted since") as refused:
        desk.intent(KEY, [part], first=True)
    assert refused.value.code == ResponseCode.STAGE_INCOMPLETE
    assert (desk.store.written, desk.state(KEY)) == (end, "none")
    # Written again, to the topic made anew.
    desk.intent(KEY, [desk.stage(KEY, 0, rows("b", 4, "Audit"))], first=True)
    desk.settle()
    assert desk.bodies() == texts(rows("b", 4, "Audit"))
    assert desk.second_step.counts.dropped["staged"] == 0
    # Repeated, it is what was decided: also when the topic has gone by now.
    desk.deleted.add("Audit", desk.store.written)
    desk.intent(KEY, [part], first=True)


# --- between two steps of a request ---------------------------------------------------------------


@pytest.fixture
def stage_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_STEP", 1)


def intent_begun(desk: Desk, parts: list[StagePart], steps: int) -> Steps:
    """An intent of which the first `steps` steps are done."""
    begun = desk.steps(RequestCode.STAGE_INTENT, KEY, encode_parts(parts))
    assert list(islice(begun, steps)) == [None] * steps
    return begun


def ended(steps: Steps) -> str:
    """How a request ended: "decided", or why it was refused."""
    try:
        drive(steps)
    except BadRequest as error:
        return error.remark
    return "decided"


#: Steps of an intent of two stages: each is looked at, then checked; then it is decided.
BEFORE_IT_IS_DECIDED = range(1, 5)


@pytest.mark.usefixtures("stage_by_stage")
@pytest.mark.parametrize("steps", BEFORE_IT_IS_DECIDED)
@pytest.mark.parametrize("what", ["given up", "expired", "added to"])
def test_a_stage_that_changes_while_an_intent_looks_at_it_is_refused(
    desk: Desk, steps: int, what: str
) -> None:
    parts = [desk.stage(KEY, 0, rows("a", 5)), desk.stage(KEY, 1, rows("b", 5))]
    begun = intent_begun(desk, parts, steps)
    for part in parts:
        match what:
            case "given up":
                desk.abort(KEY, [part.stage])
            case "expired":
                desk.staging.table.stages[part.stage].touched_ms = 0
                assert desk.staging._requests.expire_some()
            case _:
                desk.chunk(KEY, part.partition, part.stage, 2, rows("c", 1))
    assert "given up" in (why := ended(begun)) or "chunks are here, of 3 in all" in why
    desk.settle()
    assert desk.bodies() == []
    assert desk.state(KEY) == "none"


@pytest.mark.usefixtures("stage_by_stage")
@pytest.mark.parametrize("steps", BEFORE_IT_IS_DECIDED)
def test_what_comes_while_an_intent_looks_is_in_it_or_the_intent_is_refused(
    desk: Desk, steps: int
) -> None:
    late = desk.stage(KEY, 1, given := rows("b", 4))
    known = desk.staging.table.stages.pop(late.stage)
    parts = [desk.stage(KEY, 0, rows("a", 5)), late]
    begun = intent_begun(desk, parts, min(steps, 3))
    desk.staging.table.stages[late.stage] = known
    assert ended(begun) == "decided"
    desk.settle()
    assert desk.bodies() == texts(rows("a", 5) + given)


@pytest.mark.usefixtures("stage_by_stage")
@pytest.mark.parametrize("steps", BEFORE_IT_IS_DECIDED)
def test_of_two_intents_that_look_at_the_same_time_the_first_to_decide_counts(
    desk: Desk, steps: int
) -> None:
    first, second = rows("a", 5), rows("b", 5)
    parts = [desk.stage(KEY, 0, first), desk.stage(KEY, 1, second)]
    begun = intent_begun(desk, parts, steps)
    desk.intent(KEY, parts[:1])
    assert ended(begun) == "decided"
    desk.settle()
    assert desk.bodies() == texts(first)
    assert [answer.ext["existed"] for answer in desk.peer.received] == ["false", "true"]


@pytest.mark.usefixtures("stage_by_stage")
def test_a_batch_may_be_published_before_its_failed_tries_are_gone(desk: Desk) -> None:
    tries = [desk.stage(KEY, 0, rows("failed", 3)) for _ in range(3)]
    part = desk.stage(KEY, 0, given := rows("a", 7))
    begun = intent_begun(desk, [part], 3)
    desk.settle()
    assert desk.bodies() == texts(given)
    assert desk.staging.table.stages
    assert ended(begun) == "decided"
    assert desk.staging.table.stages == {}
    assert list(desk.staging.table._dropped) == [failed.stage for failed in tries]
    assert (desk.staging.table.staged_bytes, desk.staging.table.chunks) == (0, 0)


@pytest.mark.usefixtures("stage_by_stage")
@pytest.mark.parametrize("steps", range(1, 7))
def test_an_intent_between_two_steps_of_an_abort_has_all_it_names_or_nothing(
    desk: Desk, steps: int
) -> None:
    given = [rows(mark, 4) for mark in "abc"]
    parts = [desk.stage(KEY, number, some) for number, some in enumerate(given)]
    body = encode_names([part.stage for part in parts])
    begun = desk.steps(RequestCode.STAGE_ABORT, KEY, body)
    assert list(islice(begun, steps)) == [None] * steps
    whole = ended(desk.steps(RequestCode.STAGE_INTENT, KEY, encode_parts(parts)))
    drive(begun)
    desk.settle()
    expected = texts([row for some in given for row in some]) if steps <= 3 else []
    assert (whole == "decided") == (steps <= 3)
    assert desk.bodies() == expected
    desk.close()
    again = Desk(desk.path).start()
    again.settle()
    assert again.bodies() == expected
    assert again.staging.table._dropped.keys() == desk.staging.table._dropped.keys()
    again.close()


def test_an_intent_may_name_a_chunk_count_beyond_all_bounds(desk: Desk) -> None:
    part = desk.stage(KEY, 0, rows("a", 5))
    with pytest.raises(BadRequest, match="2 of its 1152921504606846976 chunks are here"):
        desk.intent(KEY, [msgspec.structs.replace(part, chunks=1 << 60)])


def test_what_is_saved_of_a_large_batch_is_no_text_yet(desk: Desk) -> None:
    """Ten thousand stages on other brokers took half a second of the loop to be written out."""
    others = [StagePart("another", 0, f"{number:032x}", 1, 1, 1) for number in range(20)]
    desk.intent(KEY, [desk.stage(KEY, 0, rows("a", 5)), *others])
    desk.settle()
    found = desk.staging.file.take_changes()
    assert found is not None
    known = found.queries[KEY[0]]
    assert isinstance(known, LastBatch)
    assert known is desk.staging.table.finished.queries[KEY[0]]
    assert len(known.others) == 20


def test_a_slave_publishes_nothing_and_a_master_after_it_goes_on(desk: Desk) -> None:
    done, given = rows("d", 3), rows("a", 10)
    desk.intent(KEY, [desk.stage(KEY, 0, done)])
    desk.settle()
    desk.save()
    key = (KEY[0], KEY[1] + 1)
    desk.intent(key, [desk.stage(key, 0, given)])
    desk.sync()
    copied = StageFile.read(drive(desk.staging.file.copying()))
    desk.close()
    slave = Desk(desk.path, role=Role(Settings.for_tests(broker_role="SLAVE")))
    slave.settle()
    assert (slave.bodies(), slave.staging.table.chunks) == (texts(done), 0)
    slave.staging.replace(copied)
    slave.save()
    slave.role.become(slave=False)
    slave.staging.lead(anew=True)
    slave.settle()
    assert slave.bodies() == texts([*done, *given])
    assert slave.state(key) == slave.state(KEY) == "done"
    slave.role.become(slave=True)
    slave.staging.follow()
    assert slave.staging.table.bytes == 0
    slave.close()
    again = Desk(desk.path).start()
    again.settle()
    assert again.bodies() == texts([*done, *given])
    again.close()


def test_a_slave_remembers_what_its_master_does(desk: Desk, tmp_path: Path) -> None:
    for number in range(3):
        key = (f"query{number}", 1)
        desk.intent(key, [desk.stage(key, 0, rows("a", 2))])
    desk.settle()
    copied = StageFile.read(drive(desk.staging.file.copying()))
    slave = Desk(tmp_path / "slave", role=Role(Settings.for_tests(broker_role="SLAVE")))
    slave.staging.replace(copied)
    slave.save()
    slave.close()
    again = Desk(tmp_path / "slave", role=Role(Settings.for_tests(broker_role="SLAVE")))
    assert [again.staging.table.state((f"query{n}", 1)) for n in range(3)] == ["done"] * 3
    few = {name: last for name, last in copied.queries.items() if name != "query1"}
    again.staging.replace(StageChanges(copied.replay_from, few))
    assert again.staging.table.state(("query1", 1)) == "none"
    again.close()
