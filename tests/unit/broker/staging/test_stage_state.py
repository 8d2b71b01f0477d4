"""The state of staged batches is bounded by bytes, and a save writes its changes. Finished batches
are forgotten after their time. Waiting requests are answered, and stages expire, some a turn."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from aerobee.access.accounts import Account, Grant, Rules
from aerobee.access.control import AccessControl
from aerobee.access.errors import AccessDenied
from aerobee.access.needs import BROKER_NEEDS
from aerobee.access.rights import DENY, PUB, SUB
from aerobee.address_patterns import AddressPattern
from aerobee.broker.staging import answers, finished
from aerobee.broker.staging import stage_table as table
from aerobee.broker.staging.stage_log import StageLog
from aerobee.broker.staging.stage_table import Stage
from aerobee.broker.tables.files import change_log
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.stages import (
    StageBatchHeader,
    StagePart,
    encode_names,
    encode_parts,
    stage_checksum,
)
from aerobee.remoting.turns import Steps
from tests.inline_loop import drive
from tests.unit.broker.staging.staging_support import BROKER, Desk, rows, texts
from tests.unit.broker.tables.clients_support import request

KEY = ("query-1", 7)
DAY_MS = 86_400_000
#: Room for intents of some hundred stages.
LARGE = {"commit_log_segment_bytes": 1 << 20, "max_message_bytes": 1 << 18}


def opened(path: Path, **changes: object) -> Desk:
    """Records have the store's time, which is that of the machine."""
    made = Desk(path, **(LARGE | changes))  # type: ignore[arg-type]
    made.now_ms = time.time_ns() // 1_000_000
    return made.start()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = opened(tmp_path / "store")
    yield made
    made.close()


def elsewhere(count: int, start: int = 0) -> list[StagePart]:
    numbers = range(start, start + count)
    return [StagePart("elsewhere", 0, f"{number:032x}", 0, 0, 0) for number in numbers]


def finish(desk: Desk, key: tuple[str, int], parts: list[StagePart]) -> None:
    desk.intent(key, parts)
    desk.settle()


def decide_many(desk: Desk) -> None:
    """Decide batches without stages here until that is refused."""
    for number in range(100):
        desk.intent((f"more{number}", 1), elsewhere(100))


def named(stage: Stage) -> StagePart:
    """The part by which an intent names this stage, as a stage that is whole."""
    checksum = stage_checksum([chunk.crc for chunk in stage.chunks.values()])
    count = len(stage.chunks)
    return StagePart(BROKER, stage.partition, stage.name, count, stage.rows, checksum)


def fill(desk: Desk) -> None:
    """Stage until that is refused."""
    for number in range(1000):
        desk.chunk(KEY, number, uuid.uuid4().hex, 0, rows("a", 1))


def again(desk: Desk, **changes: object) -> Desk:
    """The next start of the same store."""
    desk.close()
    return opened(desk.path, **changes)


def files(desk: Desk) -> dict[str, bytes]:
    found = (desk.path / "config").glob("stages*")
    return {path.name: path.read_bytes() for path in found}


# --- bounds --------------------------------------------------------------------------------------


def test_what_is_known_of_stages_and_intents_is_bounded_by_bytes(tmp_path: Path) -> None:
    """150,000 stages of a row each took what they liked; intents ended in out of memory."""
    desk = opened(tmp_path / "store", stage_state_bytes=1 << 20)
    with pytest.raises(BadRequest, match=r"limits\.stage_state_bytes") as refused:
        fill(desk)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    room = (1 << 20) * 3 // 8
    assert room - 3_000 < desk.staging.table.bytes <= room
    for number in range(3):
        desk.intent((f"open{number}", 1), elsewhere(100))
    with pytest.raises(BadRequest, match=r"limits\.stage_state_bytes"):
        decide_many(desk)
    room = (1 << 20) // 2
    assert room - 40_000 < desk.staging.table.bytes <= room
    assert desk.state(("more99", 1)) == "none"
    desk.settle()
    desk.abort(KEY, list(desk.staging.table.stages))
    assert desk.staging.table.bytes == 0
    finish(desk, ("more99", 1), elsewhere(100))
    assert desk.staging.table.bytes == 0
    desk.close()


def test_whatever_others_have_staged_a_batch_of_stages_that_are_there_is_decided(
    tmp_path: Path,
) -> None:
    """Chunks filled the room of intents too: nothing was published, and so nothing freed, until
    somebody gave up or a day was over."""
    desk = opened(tmp_path / "store", stage_state_bytes=1 << 20)
    job = ("job", 1)
    parts = [desk.stage(job, number, rows("b", 1)) for number in range(60)]
    with pytest.raises(BadRequest, match=r"limits\.stage_state_bytes"):
        fill(desk)
    finish(desk, job, [*parts, *elsewhere(60)])
    assert desk.state(job) == "done"
    desk.stage(KEY, 0, rows("c", 1))
    # And all of it in one batch.
    given = list(desk.staging.table.stages.values())
    finish(desk, KEY, [named(stage) for stage in given])
    assert (desk.state(KEY), desk.staging.table.bytes) == ("done", 0)
    desk.close()


def test_the_bytes_are_those_of_a_start_that_reads_them_again(desk: Desk) -> None:
    part = desk.stage(KEY, 0, rows("a", 9) + rows("b", 9, "Audit"))
    desk.stage(("other", 1), 0, rows("c", 3))
    desk.intent(KEY, [part, *elsewhere(5)])
    held = desk.staging.table.bytes
    assert held > 0
    desk.sync()
    desk.close()
    found = Desk(desk.path, **LARGE)  # type: ignore[arg-type]
    assert found.staging.table.bytes == held
    assert found.staging.table.stages[part.stage].topics == {"Orders", "Audit"}
    found.start().settle()
    found.abort(("other", 1), list(found.staging.table.stages))
    assert found.staging.table.bytes == 0
    found.close()


def test_of_finished_batches_the_dearest_are_forgotten_not_those_of_others(tmp_path: Path) -> None:
    desk = opened(tmp_path / "store", stage_state_bytes=1 << 20)
    finish(desk, ("modest", 3), [desk.stage(("modest", 3), 0, rows("a", 3)), *elsewhere(2)])
    for number in range(5):
        finish(desk, (f"greedy{number}", 1), elsewhere(700))
    known = desk.staging.table.finished
    assert known.bytes <= (1 << 20) // 2
    assert len(known.queries["modest"].others) == 2
    assert desk.state(("modest", 3)) == "done"
    forgotten = next(iter(known.forgotten))
    with pytest.raises(BadRequest, match="no room to remember its stages") as refused:
        desk.state((forgotten, 1))
    assert refused.value.code == ResponseCode.STAGE_CLOSED
    desk.close()


def test_numbers_of_the_longest_silent_queries_go_for_good_at_last(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.staging.table.finished, "_room", lambda: 2_500)
    for number in range(6):
        finish(desk, (f"q{number}", 0), [])
    known = desk.staging.table.finished
    assert known.bytes <= 2_500
    assert list(known.queries) == ["q2", "q3", "q4", "q5"]


def test_what_is_forgotten_for_want_of_room_is_summed_in_the_log(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There was a line for each, as many as a peer liked."""
    monkeypatch.setattr(desk.staging.table.finished, "_room", lambda: 2_500)
    for number in range(20):
        finish(desk, (f"q{number}", 0), elsewhere(10))
    said = [line for line in caplog.messages if "for want of room" in line]
    assert said == [
        "finished batch forgotten for want of room query=q0 batch=0 stages=10",
        "last batch forgotten for good for want of room query=q0",
    ]
    desk.sums.close()
    said = [line for line in caplog.messages if "for want of room" in line]
    assert said[2:] == [
        "finished batch forgotten for want of room query=q19 batch=0 stages=10 unlogged=19",
        "last batch forgotten for good for want of room query=q13 unlogged=13",
    ]


# --- forgetting ----------------------------------------------------------------------------------


def test_a_batch_repeated_after_its_time_is_refused_not_written_twice(desk: Desk) -> None:
    """Neither twice, nor in silence: by whatever request it is repeated."""
    part = desk.stage(KEY, 0, given := rows("a", 5))
    finish(desk, KEY, [part])
    desk.now_ms += 30 * DAY_MS + 60_000
    desk.staging._expire()
    for ask in (
        lambda: desk.stage(KEY, 0, given),
        lambda: desk.intent(KEY, [part]),
        lambda: desk.state(KEY),
        lambda: desk.abort(KEY, [part.stage]),
        lambda: desk.state((KEY[0], 3)),
    ):
        with pytest.raises(BadRequest, match=r"more than 30 days ago \(stage\.remember_ms\)"):
            ask()
    desk.settle()
    assert desk.bodies() == texts(given)
    following = (KEY[0], 8)
    finish(desk, following, [desk.stage(following, 0, more := rows("b", 3))])
    assert desk.bodies() == texts(given + more)
    assert desk.state(KEY) == "done"


def test_until_its_time_is_over_a_batch_is_done(desk: Desk) -> None:
    finish(desk, KEY, [desk.stage(KEY, 0, rows("a", 5))])
    desk.now_ms += 29 * DAY_MS
    desk.staging._expire()
    assert desk.state(KEY) == "done"


def test_a_forgotten_batch_is_refused_after_a_restart_too(desk: Desk) -> None:
    finish(desk, KEY, [desk.stage(KEY, 0, rows("a", 5))])
    desk.now_ms += 31 * DAY_MS
    desk.staging._expire()
    desk.save()
    found = again(desk)
    found.now_ms = desk.now_ms
    with pytest.raises(BadRequest, match=r"stage\.remember_ms"):
        found.state(KEY)
    found.close()


def test_finished_batches_are_forgotten_some_a_step(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "_STEP", 3)
    for number in range(8):
        finish(desk, (f"q{number}", 0), [])
    desk.now_ms += 31 * DAY_MS
    known = desk.staging.table.finished
    left = []
    while known.forget_old():
        left.append(len(known.queries))
    assert (left, len(known.queries), len(known.forgotten)) == ([5, 2], 0, 8)


# --- the file ------------------------------------------------------------------------------------


def test_a_save_writes_what_has_changed_and_not_the_table(desk: Desk) -> None:
    """Each change had the whole file written again."""
    for number in range(20):
        finish(desk, (f"q{number}", 0), elsewhere(50))
    desk.save()
    before = files(desk)
    finish(desk, ("one", 0), elsewhere(1))
    desk.save()
    after = files(desk)
    assert before.keys() == after.keys() == {"stages.log"}
    assert after["stages.log"].startswith(before["stages.log"])
    assert len(after["stages.log"]) - len(before["stages.log"]) < 500
    found = again(desk)
    assert found.staging.table.finished.queries == desk.staging.table.finished.queries
    found.close()


def test_the_table_is_written_when_its_changes_have_grown_long(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "LEAST_BYTES", 2_000)
    seen: set[frozenset[str]] = set()
    for number in range(60):
        finish(desk, (f"q{number % 7}", number), elsewhere(3))
        desk.save()
        seen.add(frozenset(files(desk)))
        sizes = [len(data) for name, data in files(desk).items() if ".log" in name]
        assert max(sizes, default=0) < 2 * len(files(desk).get("stages.json", b"")) + 3_000
    assert frozenset({"stages.json", "stages.json.bak", "stages.log", "stages.log.old"}) in seen
    known = desk.staging.table.finished.queries
    for name in ("", "stages.json", "stages.log.old"):
        # Without its table a start takes the backup, and the changes that lead from it.
        (desk.path / "config" / name).unlink() if name else None
        desk = again(desk)
        assert desk.staging.table.finished.queries == known
        desk.save()
    desk.close()


def test_a_table_of_a_broker_before_this_one_is_read_and_taken_over(desk: Desk) -> None:
    finish(desk, KEY, [desk.stage(KEY, 0, rows("a", 5))])
    desk.close()
    part = {"broker": "b", "chunks": 1, "checksum": 9, "partition": 0, "rows": 2, "stage": "0" * 32}
    old = {
        "queries": {
            "old": {"at": desk.now_ms, "batch": 41, "others": [part]},
            "older": {"at": desk.now_ms, "batch": 4},
        },
        "replayFrom": 0,
    }
    (desk.path / "config").mkdir(exist_ok=True)
    (desk.path / "config" / "stages.json").write_text(json.dumps(old, indent=2))
    found = opened(desk.path)
    assert [found.state(("old", 41)), found.state(("older", 4)), found.state(KEY)] == ["done"] * 3
    assert found.staging.table.finished.queries["old"].others[0].rows == 2
    finish(found, ("new", 1), [])
    found.save()
    later = again(found)
    assert later.state(("older", 5)) == "none"
    assert later.staging.table.finished.queries.keys() == {"old", "older", "new", KEY[0]}
    later.close()


def test_what_ten_large_intents_leave_is_read_by_the_next_start(tmp_path: Path) -> None:
    """It was refused: "more than 1000000 values". Ten of 15,000 stages each, of anybody's."""
    large = {"commit_log_segment_bytes": 1 << 23, "max_message_bytes": 1 << 22}
    desk = opened(tmp_path / "store", **large)
    count, each = 10, 17_000
    for number in range(count):
        finish(desk, (f"q{number}", 1), elsewhere(each))
    desk.staging.file._starts_over = True
    desk.save()
    assert (desk.path / "config" / "stages.json").stat().st_size > 15_000_000
    found = again(desk, **large)
    known = found.staging.table.finished.queries
    assert [len(last.others) for last in known.values()] == [each] * count
    found.close()


def test_damaged_files_are_kept_aside_and_all_of_the_log_is_read(desk: Desk) -> None:
    finish(desk, KEY, [desk.stage(KEY, 0, rows("a", 5))])
    desk.save()
    desk.close()
    for name in ("stages.json", "stages.json.bak", "stages.log"):
        (desk.path / "config" / name).write_text("damaged\nmore\n")
    found = opened(desk.path, sets_aside=True)
    assert found.state(KEY) == "done"
    assert {name for name in files(found) if ".damaged" in name} == {
        "stages.json.damaged",
        "stages.json.bak.damaged",
        "stages.log.damaged",
    }
    finish(found, ("next", 1), [])
    found.save()
    later = again(found)
    assert later.state(("next", 1)) == later.state(KEY) == "done"
    later.close()


def test_what_a_damaged_line_held_is_read_from_the_stage_log_again(desk: Desk) -> None:
    for number in range(3):
        finish(desk, (f"q{number}", 0), [])
        desk.save()
    desk.close()
    path = desk.path / "config" / "stages.log"
    path.write_bytes(path.read_bytes().replace(b'"q1"', b'"qX"'))
    found = opened(desk.path, sets_aside=True)
    assert found.staging.table.finished.queries.keys() == {"q0", "q1", "q2"}
    found.close()


def test_a_start_that_is_killed_before_it_saves_leaves_the_next_one_as_much(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damaged log was renamed by the first of them: its whole lines were lost for the second,
    where the stage log has not got these batches any more."""
    for number in range(3):
        finish(desk, (f"q{number}", 0), [])
        desk.save()
    desk.close()
    path = desk.path / "config" / "stages.log"
    path.write_bytes(path.read_bytes().replace(b'"q1"', b'"qX"'))
    starts: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(StageLog, "replay", lambda _log, start: starts.append(start))
        for _ in range(3):
            found = opened(desk.path, sets_aside=True)
            assert found.staging.table.finished.queries.keys() == {"q0", "q2"}
            found.close()
    assert starts == [0, 0, 0]
    assert [name for name in files(desk) if ".damaged" in name] == ["stages.log.damaged"]


def test_whichever_text_of_the_table_is_left_after_a_damaged_log_all_is_known(desk: Desk) -> None:
    """No whole lines lead from the backup before to the end."""
    for number in range(4):
        finish(desk, (f"q{number}", 0), [])
        desk.save()
        desk.staging.file._starts_over = number == 0
    desk.close()
    path = desk.path / "config" / "stages.log"
    path.write_bytes(path.read_bytes().replace(b'"q2"', b'"qX"'))
    found = opened(desk.path, sets_aside=True)
    found.save()
    found.close()
    (desk.path / "config" / "stages.json").unlink()
    assert "stages.log.old" not in files(found)
    later = opened(desk.path, sets_aside=True)
    assert later.staging.file._saved.keys() == {"q0", "q1", "q2", "q3"}
    later.close()


def close_with_a_damaged_table(desk: Desk) -> None:
    """One batch is known by the table alone, another by a line of the log of changes alone."""
    finish(desk, ("table", 0), [])
    desk.staging.file._starts_over = True
    desk.save()
    finish(desk, ("line", 0), [])
    desk.save()
    desk.close()
    for name in ("stages.json", "stages.json.bak"):
        (desk.path / "config" / name).write_text("damaged\n")


def test_a_table_that_an_earlier_start_found_damaged_still_has_all_of_the_log_read(
    desk: Desk,
) -> None:
    """That start was killed before it saved, and the lines say less than the table did."""
    close_with_a_damaged_table(desk)
    for _ in range(2):
        found = opened(desk.path, sets_aside=True)
        assert found.staging.table.finished.queries.keys() == {"table", "line"}
        found.close()


def test_after_a_damaged_log_of_changes_all_that_is_known_is_written(desk: Desk) -> None:
    """The log was moved aside with its whole lines, and the table had none of them: the start after
    the next one knew only what had changed since."""
    for number in range(3):
        finish(desk, (f"q{number}", 0), [])
        desk.save()
    desk.close()
    path = desk.path / "config" / "stages.log"
    path.write_bytes(path.read_bytes().replace(b'"q1"', b'"qX"'))
    found = opened(desk.path, sets_aside=True)
    found.save()
    table_now = json.loads(files(found)["stages.json"])
    assert table_now["queries"].keys() == {"q0", "q1", "q2"}
    finish(found, ("q3", 0), [])
    found.save()
    later = again(found)
    assert later.staging.table.finished.queries.keys() == {"q0", "q1", "q2", "q3"}
    later.close()


def test_without_its_table_all_of_the_stage_log_is_read_whatever_changes_say(desk: Desk) -> None:
    close_with_a_damaged_table(desk)
    found = opened(desk.path, sets_aside=True)
    assert found.staging.table.finished.queries.keys() == {"table", "line"}
    found.close()


# --- turns ---------------------------------------------------------------------------------------


def test_those_who_wait_for_one_batch_are_answered_some_a_turn(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,000 of them held everybody up for 12 seconds. Here an answer takes half a slice."""
    now = [0.0]
    desk.turns.clock = lambda: now[0]
    encode, made = answers.encode_response, []

    def slow(*given: object, **more: object) -> bytes:
        now[0] += 0.001
        made.append(1)
        return encode(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(answers, "encode_response", slow)
    part = desk.stage(KEY, 0, rows("a", 5))
    desk.intent(KEY, [part, *elsewhere(3)])
    desk.sync()
    made.clear()
    for _ in range(30):
        assert desk.status(KEY, wait_ms=5_000) is None
    turns = []
    while len(made) < 30:
        before = len(made)
        desk.store.sync_soon()
        assert desk.store.wait_durable(desk.store.written, 10.0)
        desk.send_ready()
        desk.loop.turn()
        turns.append(len(made) - before)
    assert 0 < max(turns) <= 6
    assert {answer.ext["state"] for answer in desk.peer.received[1:]} == {"done"}
    assert len(desk.staging.answers) == 0


def test_a_waiting_status_keeps_what_its_answer_needs_and_no_more(desk: Desk) -> None:
    desk.intent(KEY, [desk.stage(KEY, 0, rows("a", 5))])
    command = request(
        RequestCode.STAGE_STATUS, {**StageBatchHeader(*KEY, 5_000).to_ext(), "x": "y" * 100_000}
    )
    command.remark = "z" * 100_000
    assert desk.staging.handlers()[RequestCode.STAGE_STATUS](desk.peer.connection, command) is None
    (kept,) = desk.staging.answers._by_batch[KEY].values()
    assert (kept.command.ext, kept.command.remark, kept.command.body) == ({}, None, b"")
    assert (kept.command.opaque, kept.command.serialization) == (command.opaque, 0)


def test_who_was_answered_in_time_is_not_kept_until_his_time_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_KEPT", 5)
    for number in range(50):
        finish(desk, (f"q{number}", 0), [])
        assert len(desk.staging.answers._by_deadline) <= 8
    assert desk.staging.answers._by_batch == {}


def test_intents_that_were_answered_late_are_not_kept_until_the_disk_moves(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs: each driver asks again and again, and each time is over."""
    hanging = SimpleNamespace(durable=0, kept=0, kept_here=0, lacks_slaves=False)
    monkeypatch.setattr(desk.answers.intents, "_marks", hanging)
    part = desk.stage(KEY, 0, rows("a", 5))
    for _ in range(50):
        desk.intent(KEY, [part])
        desk.loop.now += 6
        desk.send_ready()
        while desk.turns.waiting:
            desk.loop.turn()
        assert len(desk.answers.intents._waiting) == 0
    assert [one.code for one in desk.peer.received] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 50


def test_too_many_may_not_wait(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_QUESTIONS", 2)
    desk.intent(KEY, [desk.stage(KEY, 0, rows("a", 5))])
    desk.sync()
    for _ in range(2):
        assert desk.status(KEY, wait_ms=5_000) is None
    with pytest.raises(BadRequest, match="2 requests wait for batches"):
        desk.status(KEY, wait_ms=5_000)
    desk.loop.now += 6
    desk.sync()
    assert (len(desk.staging.answers), desk.staging.answers._by_batch) == (0, {})


def test_more_silent_stages_than_a_record_can_name_expire_in_steps(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above 119,000 of one batch none ever did: their names were one record."""
    monkeypatch.setattr(table, "_STEP", 2)
    for number in range(5):
        desk.stage(KEY, number, rows("old", 1))
    other = desk.stage(("other", 1), 0, rows("old", 1))
    named = desk.stage(("named", 1), 0, rows("a", 1))
    desk.intent(("named", 1), [named])
    fresh = desk.stage(KEY, 9, rows("fresh", 1))
    desk.now_ms += DAY_MS + 60_000
    desk.staging.table.stages[fresh.stage].touched_ms = desk.now_ms
    steps = []
    while desk.staging._requests.expire_some():
        steps.append(len(desk.staging.table.stages))
    assert steps == [6, 4, 3, 2]
    assert desk.staging.table.stages.keys() == {fresh.stage, named.stage}
    assert desk.staging.table.is_dropped(other.stage)
    found = again(desk)
    assert fresh.stage in found.staging.table.stages
    assert found.staging.table._dropped.keys() == desk.staging.table._dropped.keys()
    found.close()


def test_what_is_published_is_passed_over_in_steps(desk: Desk) -> None:
    """A person who asked what waits had 100,000 published stages looked at in one step."""
    for number in range(3):
        desk.stage(KEY, number, rows("a", 9))
    stages = list(desk.staging.table.stages.values())
    for stage in stages:
        stage.published = stage.rows
    stages[1].published -= 1
    waiting = [stages[1].chunks[2].log_offset]
    assert list(desk.staging.waiting().places()) == [*[None] * 5, *waiting, *[None] * 3]


def test_a_stage_that_is_added_to_is_not_silent(desk: Desk) -> None:
    part = desk.stage(KEY, 0, rows("a", 4))
    later = desk.stage(KEY, 1, rows("b", 4))
    for stage in desk.staging.table.stages.values():
        stage.touched_ms = 0
    desk.chunk(KEY, 0, part.stage, 1, rows("c", 1))
    desk.staging._expire()
    assert desk.staging.table.stages.keys() == {part.stage}
    assert desk.staging.table.is_dropped(later.stage)


# --- rights --------------------------------------------------------------------------------------


def account(name: str, default: int = DENY, **topics: int) -> Account:
    grants = {topic: Grant(right, 1) for topic, right in topics.items()}
    nowhere = AddressPattern(None)
    none = Grant(DENY, 0)
    return Account(
        name, "secret-1234", False, nowhere, Grant(default, 1), none, grants, {}, "acl.yml", 1
    )


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Desk]:
    accounts = [
        account("nobody"),
        account("reader", SUB),
        account("orders", Orders=PUB),
        account("both", Orders=PUB, Audit=PUB | SUB),
    ]
    control = AccessControl(Rules(accounts), BROKER_NEEDS, lambda _offset: None, lambda: 0.0)
    made = Desk(tmp_path / "store", control=control).start()
    yield made
    made.close()


def ask(desk: Desk, who: str, code: int, body: bytes = b"", key: tuple[str, int] = KEY) -> None:
    ext = {**StageBatchHeader(*key).to_ext(), "AccessKey": who}
    command = request(code, ext)
    command.body = body
    drive(desk.staging.handlers()[code](desk.peer.connection, command))


REQUESTS = (RequestCode.STAGE_INTENT, RequestCode.STAGE_STATUS, RequestCode.STAGE_ABORT)


@pytest.mark.parametrize("who", ["nobody", "reader"])
@pytest.mark.parametrize("code", REQUESTS)
def test_who_may_send_to_no_topic_has_nothing_to_do_with_batches(
    guarded: Desk, who: str, code: RequestCode
) -> None:
    """An account without a single right had the broker remember what it liked."""
    end = guarded.store.written
    body = b"" if code == RequestCode.STAGE_STATUS else encode_parts(elsewhere(3))
    body = encode_names(["0" * 32]) if code == RequestCode.STAGE_ABORT else body
    with pytest.raises(AccessDenied, match=f"some topic: accessKey={who} needs PUB"):
        ask(guarded, who, code, body)
    assert guarded.store.written == end
    assert not guarded.staging.table.is_dropped("0" * 32)


def test_an_intent_needs_the_right_to_each_topic_that_its_stages_go_to(guarded: Desk) -> None:
    parts = [guarded.stage(KEY, 0, rows("a", 3)), guarded.stage(KEY, 1, rows("b", 3, "Audit"))]
    end = guarded.store.written
    names = encode_names([part.stage for part in parts])
    for code, body in (
        (RequestCode.STAGE_INTENT, encode_parts(parts)),
        (RequestCode.STAGE_ABORT, names),
    ):
        with pytest.raises(AccessDenied, match="topic:Audit: accessKey=orders needs PUB"):
            ask(guarded, "orders", code, body)
    assert (guarded.store.written, len(guarded.staging.table.stages)) == (end, 2)
    ask(guarded, "both", RequestCode.STAGE_INTENT, encode_parts(parts))
    guarded.settle()
    assert guarded.bodies() == texts(rows("a", 3) + rows("b", 3, "Audit"))


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_stage_that_begins_while_an_abort_looks_is_not_dropped_unjudged(
    guarded: Desk, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Rights were asked in a first pass and stages dropped in a second."""
    monkeypatch.setattr(table, "_STEP", 1)
    parts = [guarded.stage(KEY, number, rows("a", 1)) for number in range(3)]
    late = uuid.uuid4().hex
    command = request(
        RequestCode.STAGE_ABORT, {**StageBatchHeader(*KEY).to_ext(), "AccessKey": "orders"}
    )
    command.body = encode_names([*[part.stage for part in parts], late])
    handler = guarded.staging.handlers()[RequestCode.STAGE_ABORT]
    begun = cast("Steps", handler(guarded.peer.connection, command))
    assert list(islice(begun, steps)) == [None] * steps
    guarded.chunk(KEY, 9, late, 0, rows("b", 3, "Audit"))
    with pytest.raises(AccessDenied, match="topic:Audit: accessKey=orders needs PUB"):
        drive(begun)
    assert late in guarded.staging.table.stages
    assert not guarded.staging.table.is_dropped(late)


def test_names_of_no_stage_do_not_push_out_those_of_stages_given_up(
    guarded: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no right to a topic, and are given up all the same: a stage may lie elsewhere."""
    monkeypatch.setattr(table, "DROPPED_KEPT", 6)
    monkeypatch.setattr(table, "_UNSEEN_KEPT", 3)
    parts = [guarded.stage(KEY, number, rows("a", 1)) for number in range(3)]
    given_up = [part.stage for part in parts]
    ask(guarded, "orders", RequestCode.STAGE_ABORT, encode_names(given_up))
    unseen = [uuid.uuid4().hex for _ in range(10)]
    for name in unseen:
        ask(guarded, "orders", RequestCode.STAGE_ABORT, encode_names([name]))
    is_dropped = guarded.staging.table.is_dropped
    assert [name for name in given_up + unseen if is_dropped(name)] == given_up + unseen[-3:]


def test_rights_are_asked_of_stages_that_a_start_has_read(guarded: Desk) -> None:
    part = guarded.stage(KEY, 0, rows("b", 3, "Audit"))
    control = guarded.staging._requests._control
    guarded.close()
    found = Desk(guarded.path, control=control).start()
    with pytest.raises(AccessDenied, match="topic:Audit"):
        ask(found, "orders", RequestCode.STAGE_INTENT, encode_parts([part]))
    found.close()


def test_rows_of_a_topic_that_is_gone_cannot_be_decided(guarded: Desk) -> None:
    part = guarded.stage(KEY, 0, rows("a", 3))
    guarded.topics.delete("Orders").result()
    with pytest.raises(BadRequest, match=r"topic\[Orders\].*not there any more"):
        ask(guarded, "both", RequestCode.STAGE_INTENT, encode_parts([part]))


def test_an_intent_without_stages_here_needs_a_topic_to_send_to(guarded: Desk) -> None:
    ask(guarded, "orders", RequestCode.STAGE_INTENT, encode_parts(elsewhere(2)), ("q", 1))
    guarded.settle()
    ask(guarded, "orders", RequestCode.STAGE_STATUS, key=("q", 1))
    assert BROKER not in {part.broker for part in elsewhere(2)}
