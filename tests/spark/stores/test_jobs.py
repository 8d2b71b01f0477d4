"""The jobs on real Spark over a store's files: what they find, make and refuse, and their codes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.message import Message
from aerobee.pipeline.jobs.targets.ledger import Ledger
from aerobee.pipeline.jobs.targets.target import Target
from tests import campaign
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until
from tests.ports import free_port
from tests.spark.conftest import require
from tests.spark.kit import ROOT, VERSIONS, Driver, python_of, quick
from tests.spark.messages import new_topic, send_messages
from tests.unit.pipeline.jobs.test_jobs_audit import as_fault, plant_anywhere
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import ManualClock, message, small_settings, tree

SIZES = ["--queue-file-bytes", "200", "--index-slots", "50", "--index-entries", "40"]
PICTURES = ["hours", "latency", "queues", "sizes", "tags", "topics"]
FOLDERS = ("consumequeue", "index")
MESSAGES = at.QUEUES * at.PER_QUEUE


def job(spark: Any, arguments: list[str], rows: bool = True) -> dict[str, Any]:
    """One job by its arguments: exit code, facts, report, the rows of its frames."""
    from aerobee.pipeline.jobs.arguments import build_parser
    from aerobee.pipeline.jobs.common.job_result import JobFailed
    from aerobee.pipeline.jobs.run import run_job
    from aerobee.pipeline.jobs.submit import parse_time

    parsed = build_parser().parse_args(arguments)
    try:
        result = run_job(parsed, parse_time, None, spark)
    except JobFailed as error:
        return {"code": error.code, "error": str(error)}
    frames = {
        name: [row.asDict() for row in frame.collect()] if rows else []
        for name, frame in result.frames.items()
    }
    text = "\n".join(result.lines)
    return {"code": result.code, "facts": result.facts, "text": text, "frames": frames}


def archived(spark: Any, target: str) -> list[dict[str, Any]]:
    from aerobee.pipeline.jobs.archive import read_archive

    rows = read_archive(spark, target).drop("error", "date").orderBy("commitLogOffset")
    return [row.asDict() for row in rows.collect()]


def in_store(spark: Any, store: str, options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    options = {"use": "commitlog"} | (options or {})
    rows = spark.read.format("rocketmq-store").options(**options).load(store)
    return [row.asDict() for row in rows.drop("error").orderBy("commitLogOffset").collect()]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("jobs") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def stored(root: Path) -> dict[tuple[int, int], at.Stored]:
    return {
        (queue_id, one.queue_offset): one
        for queue_id in range(at.QUEUES)
        for one in at.of_queue(root, queue_id)
    }


def test_audit_finds_each_of_fifty_faults_and_nothing_else(newest: Driver, tmp_path: Path) -> None:
    per_queue = 60
    root = at.make(tmp_path / "store", per_queue)
    sound = newest.run(job, arguments=["audit", str(root)])
    assert (sound["code"], sound["frames"]["findings"]) == (0, [])
    assert sound["facts"]["records"] == at.QUEUES * per_queue + 4
    assert sound["facts"]["units"] == at.QUEUES * per_queue + 1
    assert sound["text"].endswith("is SOUND")
    planted = plant_anywhere(root, per_queue, 50, campaign.rng("fifty faults"))
    found = newest.run(job, arguments=["audit", str(root), "--split-bytes", "4096"])
    rows = found["frames"]["findings"]
    names = ("kind", "queueId", "queueOffset", "commitLogOffset")
    faults = [as_fault(*(row[name] for name in names)) for row in rows]
    assert sorted(faults, key=str) == sorted(planted, key=str)
    assert len(set(planted)) == 50
    assert found["code"] == 1
    assert "DAMAGED: 50 findings" in found["text"]


def test_audit_names_each_damaged_range_and_the_messages_in_it(
    newest: Driver, tmp_path: Path
) -> None:
    root = mixed_store(tmp_path / "store", 200)
    intact = at.copy(root, tmp_path / "intact")
    everything = at.records(root)
    # Four in a segment, all from one segment's middle into the next but one, and the last three.
    lost = [everything[10:14], everything[60:140], everything[-3:]]
    for part in lost:
        wipe(root, part[0].log_offset, part[-1].log_offset + part[-1].size)
    counted = [Counter(one.topic for one in part) for part in lost]
    arguments = ["audit", str(root), "--split-bytes", "4096"]
    found = newest.run(job, arguments=arguments)
    following = [everything[14].log_offset, everything[140].log_offset, at.log_end(intact)]
    ranges = [(part[0].log_offset, end) for part, end in zip(lost, following, strict=True)]
    rows = sorted(found["frames"]["damage"], key=lambda row: row["start"])
    assert [(row["start"], row["end"]) for row in rows] == ranges
    assert [row["bytes"] for row in rows] == [end - start for start, end in ranges]
    assert [row["topics"] for row in rows] == counted
    assert [row["messages"] for row in rows] == [4, 80, 3]
    # The second has ends of segments in it, of which nobody can say what was there.
    assert [row["isExact"] for row in rows] == [True, False, True]
    assert found["facts"]["damage"] == len(found["frames"]["findings"])
    assert found["facts"]["lost_messages"] == 87
    assert found["facts"]["lost_by_topic"] == dict(sum(counted, Counter()))
    assert found["facts"]["lost_by_range"][0]["messages"] == 80
    by_queue = Counter((one.topic, one.queue_id) for part in lost for one in part)
    told = {(row["topic"], row["queueId"]): 0 for row in found["frames"]["lost"]}
    for row in found["frames"]["lost"]:
        told[row["topic"], row["queueId"]] += row["messages"]
    assert told == by_queue
    assert found["text"].endswith("findings, at least 87 messages lost")
    assert found["code"] == 1
    # Without the queues the numbers of what is left tell the same, but for the end of the log.
    shutil.rmtree(root / "consumequeue")
    numbered = newest.run(job, arguments=arguments)
    rows = sorted(numbered["frames"]["damage"], key=lambda row: row["start"])
    assert [row["topics"] for row in rows] == counted[:2]
    assert not any(row["isExact"] for row in rows)
    assert {row["toldBy"] for row in numbered["frames"]["lost"]} == {"numbers"}
    assert "at least 84 messages lost" in numbered["text"]


def mixed_store(root: Path, count: int) -> Path:
    """Messages of two topics, in turns over two queues each, of several segments."""
    from aerobee.store.message_store import MessageStore

    store = MessageStore.open(small_settings(root), clock=ManualClock())
    for number in range(count):
        topic = "Orders" if number % 3 else "Payments"
        store.log.put(message(b"%06d" % number + b"." * 60, topic, queue_id=number // 3 % 2))
    store.dispatch()
    assert store.close()
    return root


def wipe(root: Path, start: int, end: int) -> None:
    """Nothing but 0xff from one log offset to another."""
    for segment in range(start // at.SEGMENT * at.SEGMENT, end, at.SEGMENT):
        first, last = max(start, segment), min(end, segment + at.SEGMENT)
        at.overwrite_log(root, first, b"\xff" * (last - first))


def run_program(spark: Any, text: str) -> dict[str, Any]:
    names = {"spark": spark}
    exec(text, names)  # of our own page
    return {"code": names["result"].code, "facts": names["result"].facts}


def test_the_jobs_function_of_the_page_audits(newest: Driver, tmp_path: Path) -> None:
    root = at.make(tmp_path / "store", 60)
    section = (ROOT / "docs" / "pipeline.md").read_text().partition("\n## Jobs")[2]
    text = section.partition("```python\n")[2].partition("```")[0]
    assert '"/var/lib/aerobee/store"' in text
    text = text.replace('"/var/lib/aerobee/store"', repr(str(root)))
    found = newest.run(run_program, text=text)
    assert (found["code"], found["facts"]["records"]) == (0, at.QUEUES * 60 + 4)


def test_audit_tells_messages_that_a_producer_sent_twice(newest: Driver, tmp_path: Path) -> None:
    from aerobee.store.message_store import MessageStore

    store = MessageStore.open(small_settings(tmp_path / "s"), clock=ManualClock())
    for unique in ("A", "B", "A"):
        store.log.put(message(b"x", unique=unique))
    # A broker stores them again itself in this form.
    store.log.put(message(b"x", "%RETRY%g", unique="B"))
    store.log.put(message(b"x", "%RETRY%g", unique="B"))
    store.dispatch()
    assert store.close()
    found = newest.run(job, arguments=["audit", str(tmp_path / "s")])
    rows = found["frames"]["findings"]
    assert [(row["kind"], row["topic"], row["amount"]) for row in rows] == [
        ("key-twice", "Orders", 1)
    ]
    assert found["code"] == 0


def test_deleted_queues_and_index_come_back_byte_equal(
    newest: Driver, root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    before = {name: tree(root, name) for name in FOLDERS}
    known = answers(root)
    for name in FOLDERS:
        shutil.rmtree(root / name)
    arguments = ["rebuild", str(root), "--to", str(out), "--split-bytes", "4096", *SIZES]
    made = newest.run(job, arguments=arguments)
    assert made["code"] == 0
    assert tree(out, "consumequeue") == before["consumequeue"]
    index = list(tree(out, "index").values())
    assert index == list(before["index"].values())
    assert len(index) > 2
    again = newest.run(job, arguments=arguments)
    assert (again["code"], "is not empty" in again["error"]) == (3, True)
    # Put in place, the store is as good as it was, for the audit and for a broker.
    for name in FOLDERS:
        (out / name).rename(root / name)
    assert newest.run(job, arguments=["audit", str(root)])["text"].endswith("is SOUND")
    assert answers(root) == known
    assert len(known["U7"]) == 1


def answers(root: Path) -> dict[str, list[bytes]]:
    """The bodies that a broker finds for each key."""
    from aerobee.store.message_store import MessageStore

    keys = [f"{letter}{number}" for number in range(MESSAGES) for letter in "UK"]
    store = MessageStore.open(small_settings(root), clock=ManualClock())
    try:
        found = {key: store.search.query("Orders", key, 64, 0, 1 << 62) for key in keys}
        return {key: [bytes(one) for one in result.records] for key, result in found.items()}
    finally:
        assert store.close()


def test_rebuild_of_a_damaged_log_leaves_pre_blank_slots(newest: Driver, root: Path) -> None:
    one = stored(root)[1, 9]
    at.flip_log(root, one.log_offset + 90)
    out = root.parent / "out"
    newest.run(job, arguments=["rebuild", str(root), "--to", str(out), "--queues", *SIZES])
    at.set_unit(root, 1, 9, at.PRE_BLANK)
    assert tree(out, "consumequeue") == tree(root, "consumequeue")
    assert not (out / "index").exists()


def test_an_archive_has_every_message_once_over_runs(
    newest: Driver, root: Path, tmp_path: Path
) -> None:
    target = str(tmp_path / "archive")
    last = sorted((root / "commitlog").iterdir())[-1]
    aside = last.rename(tmp_path / last.name)
    arguments = ["archive", str(root), "--to", target, "--range-bytes", "8192"]
    first = newest.run(job, arguments=arguments)
    assert (first["code"], first["facts"]["ranges"]) == (0, 2)
    aside.rename(last)
    second = newest.run(job, arguments=arguments)
    assert second["facts"]["log_start"] == first["facts"]["archived_to"]
    everything = newest.run(in_store, store=str(root))
    assert newest.run(archived, target=target) == everything
    third = newest.run(job, arguments=arguments)
    assert (third["facts"]["rows"], third["facts"]["total_rows"]) == (0, len(everything))
    checked = newest.run(job, arguments=["archive", str(root), "--to", target, "--check"])
    assert (checked["code"], checked["facts"]["wrong"]) == (0, [])


def test_an_archive_of_a_selection_goes_on_with_it_and_with_no_other(
    newest: Driver, tmp_path: Path
) -> None:
    root = mixed_store(tmp_path / "store", 200)
    target = str(tmp_path / "archive")
    everything = newest.run(in_store, store=str(root))
    end = everything[150]["storeTimestamp"]
    wanted = [row for row in everything if row["topic"] == "Payments"]
    wanted = [row for row in wanted if row["storeTimestamp"] < end]
    end_ms = str(round(end.timestamp() * 1000))
    last = sorted((root / "commitlog").iterdir())[2:]
    aside = [path.rename(tmp_path / path.name) for path in last]
    arguments = ["archive", str(root), "--to", target, "--range-bytes", "4096"]
    selected = ["--topic", "Payments", "--end", end_ms]
    typo = newest.run(job, arguments=[*arguments, "--topic", "Paymets"])
    assert (typo["code"], "no queue of Paymets; it has queues of" in typo["error"]) == (3, True)
    assert not (tmp_path / "archive" / "_archive").exists()
    first = newest.run(job, arguments=[*arguments, *selected])
    assert (first["code"], first["facts"]["ranges"]) == (0, 2)
    # The other messages of the segments are in no archive.
    assert "may be deleted" not in first["text"]
    assert "what else it holds is not here" in first["text"]
    for path in aside:
        path.rename(root / "commitlog" / path.name)
    before = tree(tmp_path, "archive")
    for other in ([], ["--topic", "Orders", "--end", end_ms], ["--topic", "Payments"]):
        refused = newest.run(job, arguments=[*arguments, *other])
        assert refused["code"] == 2
        assert "holds messages of Payments stored before 20" in refused["error"]
        assert "use another target" in refused["error"]
    assert tree(tmp_path, "archive") == before
    second = newest.run(job, arguments=[*arguments, *selected])
    # Ranges without a message of it count as archived all the same.
    assert second["facts"]["archived_to"] == sum(
        everything[-1][name] for name in ("commitLogOffset", "recordSize")
    )
    assert any(entry["rows"] == 0 for entry in second["frames"]["entries"])
    assert newest.run(archived, target=target) == wanted
    third = newest.run(job, arguments=[*arguments, *selected])
    assert (third["code"], third["facts"]["ranges"]) == (0, 0)


def test_what_is_written_behind_an_archived_end_is_archived_later(
    newest: Driver, root: Path, tmp_path: Path
) -> None:
    """A broker makes the next segment before it needs it; the one before is not full then."""
    everything = newest.run(in_store, store=str(root))
    tail = everything[-12]["commitLogOffset"]
    place, position = at.place(tail, root)
    whole = place.read_bytes()
    later = [path for path in sorted((root / "commitlog").iterdir()) if path.name > place.name]
    kept = {path: path.read_bytes() for path in (place, *later)}
    place.write_bytes(whole[:position] + bytes(len(whole) - position))
    for path in later:
        path.write_bytes(bytes(at.SEGMENT))
    following = place.with_name(f"{int(place.name) + at.SEGMENT:020d}")
    following.write_bytes(bytes(at.SEGMENT))
    queues = root / "consumequeue"
    queues.rename(tmp_path / "queues")
    target = str(tmp_path / "archive")
    arguments = ["archive", str(root), "--to", target, "--range-bytes", "4096"]
    first = newest.run(job, arguments=arguments)
    assert first["facts"]["archived_to"] == tail
    following.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    (tmp_path / "queues").rename(queues)
    assert newest.run(job, arguments=arguments)["code"] == 0
    assert newest.run(archived, target=target) == everything


def test_bodies_of_unknown_compression_are_archived_as_they_are(
    newest: Driver, tmp_path: Path
) -> None:
    from aerobee.store.message_store import MessageStore

    store = MessageStore.open(small_settings(tmp_path / "s"), clock=ManualClock())
    bodies = {0: b"plain", 1: zlib.compress(b"zlib"), 0x101: b"\x04\x22lz4", 0x201: b"\x28zstd"}
    bodies[0x301] = zlib.compress(b"zlib, said so")
    for flag, body in bodies.items():
        store.log.put(message(body, sys_flag=flag))
    store.dispatch()
    assert store.close()
    target = str(tmp_path / "archive")
    made = newest.run(job, arguments=["archive", str(tmp_path / "s"), "--to", target])
    assert (made["facts"]["rows"], made["facts"]["bad_records"]) == (5, 0)
    rows = newest.run(archived, target=target)
    found = {row["sysFlag"]: bytes(row["body"]) for row in rows}
    assert found == bodies | {1: b"zlib", 0x301: b"zlib, said so"}
    # Nobody could read them, if they were sent as plain bodies.
    dry = newest.run(job, arguments=["replay", target, "--archive", "--dry-run"])
    assert (dry["facts"]["messages"], dry["facts"]["bad_records"]) == (3, 2)


def test_a_driver_killed_while_it_archives_leaves_each_message_once(
    newest: Driver, new_driver: Callable[..., Driver], root: Path, tmp_path: Path
) -> None:
    dice = campaign.rng("killed while it archives")
    target = tmp_path / "archive"
    arguments = ["archive", str(root), "--to", str(target), "--range-bytes", "1"]
    doomed = new_driver()
    doomed.child.process.stdin.write(request(job, arguments=arguments).encode())
    doomed.child.process.stdin.flush()
    ranges = dice.randrange(1, 4)

    def has_archived() -> bool:
        return len(list(target.glob("_archive/entries/*"))) >= ranges

    wait_until(has_archived, 300, f"{ranges} ranges archived", every_s=0.01)
    doomed.kill()
    everything = newest.run(in_store, store=str(root))
    # At any point of its work, decided ranges are there, whole, and nothing else.
    rows = sum(entry.rows for entry in Ledger(Target(str(target))).entries())
    assert newest.run(archived, target=str(target)) == everything[:rows]
    assert newest.run(job, arguments=arguments)["code"] == 0
    assert newest.run(archived, target=str(target)) == everything


def test_messages_deleted_before_they_were_archived_are_said(newest: Driver, root: Path) -> None:
    target = str(root.parent / "archive")
    segments = sorted((root / "commitlog").iterdir())
    for path in segments[1:]:
        path.rename(root.parent / path.name)
    arguments = ["archive", str(root), "--to", target]
    first = newest.run(job, arguments=arguments)
    for path in segments[2:]:
        (root.parent / path.name).rename(path)
    segments[0].unlink()
    strict = newest.run(job, arguments=[*arguments, "--mode", "failfast"])
    assert (strict["code"], "deleted before they were archived" in strict["error"]) == (1, True)
    lenient = newest.run(job, arguments=arguments)
    assert lenient["facts"]["missed"] == (first["facts"]["archived_to"], at.SEGMENT * 2)
    assert newest.run(job, arguments=arguments)["facts"]["missed"] is None


def test_replay_keeps_what_is_the_users_and_says_where_it_is_from(
    newest: Driver, root: Path, tmp_path: Path
) -> None:
    target = str(tmp_path / "archive")
    newest.run(job, arguments=["archive", str(root), "--to", target])
    dry = ["--dry-run", "--topic", "Orders", "--where", "tags = 'T1'"]
    found = newest.run(job, arguments=["replay", target, "--archive", *dry])
    same = newest.run(job, arguments=["replay", str(root), *dry])
    rows = found["frames"]["messages"]
    assert rows == same["frames"]["messages"]
    assert len(rows) == 34
    assert found["frames"]["topics"] == [{"topic": "Orders", "count": 34}]
    one = next(row for row in rows if row["keys"] == "K4 even")
    assert bytes(one["body"]).startswith(b"000004")
    assert set(one["properties"]) == {"REPLAYED_FROM", "REPLAYED_BORN_TIME"}
    assert one["properties"]["REPLAYED_FROM"] == "Orders/1/1/U4"
    waiting = ["--where", "topic = 'SCHEDULE_TOPIC_XXXX'"]
    refused = newest.run(job, arguments=["replay", str(root), "--dry-run", *waiting])
    assert (refused["code"], "cannot be sent there" in refused["error"]) == (3, True)
    meant = newest.run(job, arguments=["replay", str(root), "--dry-run", *waiting, "--to", "x"])
    assert [bytes(row["body"]) for row in meant["frames"]["messages"]] == [b"later"]


def test_replay_leaves_out_what_is_no_message(newest: Driver, tmp_path: Path) -> None:
    from aerobee.store.message_store import MessageStore

    clock = ManualClock()
    store = MessageStore.open(small_settings(tmp_path / "s"), clock=clock)

    def put(body: bytes, topic: str, unique: str = "", real: str = "") -> None:
        clock.time_ms += 10
        more = {"REAL_TOPIC": real, "REAL_QID": "0"} if real else {}
        store.log.put(message(body, topic, unique=unique, more=more))

    put(b"plain", "Orders", "A")
    put(b"chunk", "rmq_sys_aerobee_stage")
    for _ in range(2):
        # Tried twice: it waits, is delivered, waits again.
        put(b"again", "SCHEDULE_TOPIC_XXXX", "B", "%RETRY%g")
        put(b"again", "%RETRY%g", "B", "%RETRY%g")
    put(b"again", "SCHEDULE_TOPIC_XXXX", "B", "%RETRY%g")
    put(b"delayed", "SCHEDULE_TOPIC_XXXX", "C", "Orders")
    put(b"delayed", "Orders", "C", "Orders")
    put(b"waits", "SCHEDULE_TOPIC_XXXX", "D", "Orders")
    for topic in ("RMQ_SYS_TRACE_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_other"):
        put(b"note", topic)
    put(b"d", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    store.dispatch()
    assert store.close()
    target = str(tmp_path / "archive")
    notes = {
        "staging of a sink's rows": 1,
        "notes of brokers and traces": 3,
        "notes of transactions' ends": 1,
    }
    made = newest.run(job, arguments=["archive", str(tmp_path / "s"), "--to", target])
    assert (made["facts"]["rows"], made["facts"]["left_out"]) == (9, notes)
    assert "3 records: notes of brokers and traces" in made["text"]
    traces = ["--to", str(tmp_path / "traces"), "--topic", "RMQ_SYS_TRACE_TOPIC"]
    named = newest.run(job, arguments=["archive", str(tmp_path / "s"), *traces])
    assert (named["facts"]["rows"], named["facts"]["left_out"]) == (1, {})
    in_log = {"waiting copies of delayed messages": 5} | {
        "staging of a sink's rows": 1,
        "notes of brokers and traces": 3,
        "transactions' own": 1,
    }
    # A waiting message has no other copy yet, so an archive has it; the rest it never had.
    in_archive = {"waiting copies of delayed messages": 5}
    for arguments, others in (([str(tmp_path / "s")], in_log), ([target, "--archive"], in_archive)):
        found = newest.run(job, arguments=["replay", *arguments, "--to", "x", "--dry-run"])
        bodies = [bytes(row["body"]) for row in found["frames"]["messages"]]
        assert bodies == [b"plain", b"again", b"again", b"delayed"]
        assert found["facts"]["left_out"] == others
        assert found["facts"]["still_waiting"] == 2
        assert "2 delayed messages are not delivered yet" in found["text"]
    shares = newest.run(job, arguments=["traffic", str(tmp_path / "s")])
    assert shares["facts"]["staged"] == 1
    kinds = {row["kind"]: row["messages"] for row in shares["frames"]["kinds"]}
    assert kinds["staging of a sink's rows"] == 1
    assert "rmq_sys_aerobee_stage" not in {row["topic"] for row in shares["frames"]["topics"]}


def test_archive_then_replay_gives_the_same_messages(
    newest: Driver, our_broker: Broker, root: Path, tmp_path: Path
) -> None:
    target = str(tmp_path / "archive")
    newest.run(job, arguments=["archive", str(root), "--to", target])
    topic = new_topic(our_broker, 3, "replayed")
    arguments = ["replay", target, "--archive", "--topic", "Orders", "--to", topic]
    arguments += ["--where", "sysFlag = 0", "-n", our_broker.name_server, "--job-id", topic]
    sent = newest.run(job, arguments=[*arguments, "--rate", "2000"])
    assert (sent["code"], sent["facts"]["messages"]) == (0, MESSAGES)
    assert sent["facts"]["sent"] == MESSAGES
    # The job, run again, sends nothing twice, and says so.
    again = newest.run(job, arguments=arguments)
    assert (again["code"], again["facts"]["sent"]) == (0, 0)
    assert f"nothing sent: job {topic} was done before" in again["text"]
    options = {"nameServer": our_broker.name_server, "topic": topic}
    found = newest.run(in_topic, options=options)
    original = [row for row in newest.run(archived, target=target) if row["topic"] == "Orders"]
    originals = [row for row in original if row["sysFlag"] == 0]

    def what(row: dict[str, Any]) -> tuple[object, ...]:
        return bytes(row["body"]), row["tags"], row["keys"]

    assert sorted(map(what, found), key=str) == sorted(map(what, originals), key=str)
    by_body = {bytes(row["body"]): row for row in originals}
    for row in found:
        one = by_body[bytes(row["body"])]
        place = f"Orders/{one['queueId']}/{one['queueOffset']}/{one['msgId']}"
        assert row["properties"]["REPLAYED_FROM"] == place
        born = str(round(one["bornTimestamp"].timestamp() * 1000))
        assert row["properties"]["REPLAYED_BORN_TIME"] == born


def in_topic(spark: Any, options: dict[str, str]) -> list[dict[str, Any]]:
    rows = (
        spark.read.format("rocketmq").options(**options, columns="body,tags,keys,properties").load()
    )
    return [row.asDict() for row in rows.collect()]


def test_traffic_counts_everything_and_draws_it(newest: Driver, root: Path) -> None:
    out = root.parent / "plots"
    found = newest.run(job, arguments=["traffic", str(root), "--plots", str(out)])
    assert found["code"] == 0
    topics = {row["topic"]: row for row in found["frames"]["topics"]}
    assert topics["Orders"]["messages"] == MESSAGES + 1
    sizes = [one.size for one in at.records(root) if one.topic == "Orders"]
    assert topics["Orders"]["bytes"] == sum(sizes)
    assert topics["Orders"]["sizeMax"] == max(sizes)
    kinds = {row["kind"]: row["messages"] for row in found["frames"]["kinds"]}
    assert kinds["waiting for their time"] == 1
    assert sum(row["messages"] for row in found["frames"]["tags"]) == MESSAGES + 4
    assert found["facts"]["tables"]["topics"] == found["frames"]["topics"]
    assert {"tags", "producers", "queues", "hours"} < set(found["facts"]["tables"])
    page = (out / "index.html").read_text()
    pictures = sorted(out.glob("*.png"))
    assert [path.stem for path in pictures] == PICTURES
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert page.count("data:image/png;base64,") == len(PICTURES)
    assert "Orders" in page
    assert "by topic" in found["text"]


def test_retention_says_what_groups_lose(newest: Driver, root: Path) -> None:
    found = newest.run(job, arguments=["retention", str(root), "--hours", "1", "--size", "8192"])
    by_policy = {row["policy"]: row for row in found["frames"]["outcomes"]}
    segments = len(list((root / "commitlog").iterdir()))
    assert by_policy["1 h"]["segments"] == segments - 1
    assert by_policy["8192 bytes"]["leftBytes"] == 8192
    begin = by_policy["8192 bytes"]["beginOffset"]
    lost = {
        (row["group"], row["queueId"]): row["lost"]
        for row in found["frames"]["losses"]
        if row["policy"] == "8192 bytes"
    }
    gone = [one for one in at.of_queue(root, 0) if one.log_offset < begin]
    assert lost["g1", 0] == len(gone) - 5
    assert ("g1", 1) not in lost


def test_dead_letters_are_told_with_their_reason(newest: Driver, tmp_path: Path) -> None:
    from aerobee.store.message_store import MessageStore

    store = MessageStore.open(small_settings(tmp_path / "s"), clock=ManualClock())
    more = {"RETRY_TOPIC": "Orders", "ORIGIN_MESSAGE_ID": "AC"}
    for tries, body in ((17, b"often"), (3, b"\xff\xfe"), (17, "\u4e2d".encode())):
        one = message(body, "%DLQ%g", more=more)
        store.log.put(with_tries(one, tries))
    store.dispatch()
    assert store.close()
    found = newest.run(job, arguments=["dlq", str(tmp_path / "s")])
    rows = {row["reason"]: row for row in found["frames"]["groups"]}
    assert rows["tries used up"]["messages"] == 2
    assert rows["given up by the consumer"]["triesMax"] == 2
    assert {row["originTopic"] for row in found["frames"]["letters"]} == {"Orders"}
    assert "0xfffe" in found["text"]
    assert "\u4e2d" in found["text"]


def with_tries(one: Any, tries: int) -> Any:
    import msgspec

    return msgspec.structs.replace(one, reconsume_times=tries)


def test_failfast_ends_with_a_code_and_names_the_place(newest: Driver, root: Path) -> None:
    one = stored(root)[0, 3]
    at.overwrite_log(root, one.log_offset + 4, b"\0\0\0\0")
    for name in ("audit", "traffic"):
        found = newest.run(job, arguments=[name, str(root), "--mode", "failfast"])
        assert found["code"] == 1, found
        assert str(one.log_offset) in found["error"]
    assert newest.run(job, arguments=["traffic", str(root)])["facts"]["bad_records"] == 1


def test_what_cannot_be_is_said_in_one_line(newest: Driver, root: Path) -> None:
    for arguments, text in (
        (["traffic", "--topic", "Nope"], "no message of Nope in"),
        (["dlq", "--topic", "Orders"], "no message of Orders in"),
        (["replay", "--dry-run", "--where", "colour = 1"], "colour"),
    ):
        found = newest.run(job, arguments=[*arguments, str(root)])
        assert (found["code"], text in found["error"]) == (3, True), found
        assert "\n" not in found["error"]


def test_a_replay_looks_for_its_brokers_before_it_reads(newest: Driver, root: Path) -> None:
    """Which of two faults is said: the other one is found when the store is read."""
    nowhere = f"127.0.0.1:{free_port()}"
    arguments = ["replay", str(root), "--where", "colour = 1", "-n", nowhere]
    for more, text in (
        ((), f"no name server answers ({nowhere})"),
        (("--sink", "guarantee=x"), "guarantee"),
    ):
        found = newest.run(job, arguments=[*arguments, *more])
        assert (found["code"], text in found["error"]) == (3, True), found


def test_the_store_of_a_java_broker_is_audited_and_rebuilt(
    newest: Driver, new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    java_broker = new_broker("java").start()  # the run's own has a million messages of another test
    topic = new_topic(java_broker, 2, "jobs")
    sent = [
        Message(topic, b"%03d" % number, tags=f"T{number % 3}", keys=(f"K{number}", "even"))
        for number in range(60)
    ]
    for queue in range(2):
        send_messages(java_broker, sent[queue::2], queue)
    send_messages(java_broker, [Message(topic, b"later", delay_level=18)])
    root = java_broker.store
    # Its dispatcher and flusher run behind: units first, then the index.
    wait_until(lambda: java_units(root, topic) == (30, 30), 120, "60 units")
    read = newest.run(in_store, store=str(root), options={"topic": topic, "use": "consumequeue"})
    found = [(bytes(row["body"]), row["tags"], row["keys"], row["queueId"]) for row in read]
    assert sorted(found) == sorted(
        (one.body, one.tags, " ".join(one.keys), place % 2) for place, one in enumerate(sent)
    )
    audited = newest.run(job, arguments=["audit", str(root)])
    assert (audited["code"], audited["facts"]["damage"]) == (0, 0), audited["text"]
    out = tmp_path / "out"
    shape = java_broker.shape
    sizes = ["--queue-file-bytes", str(shape.queue_segment_bytes)]
    sizes += ["--index-slots", str(shape.index_slots), "--index-entries", str(shape.index_entries)]
    made = newest.run(job, arguments=["rebuild", str(root), "--to", str(out), *sizes])
    assert made["code"] == 0
    assert tree(out, "consumequeue") == tree(root, "consumequeue")
    assert list(tree(out, "index").values()) == list(tree(root, "index").values())


def java_units(root: Path, topic: str) -> tuple[int, ...]:
    files = [root / "consumequeue" / topic / str(queue) / f"{0:020d}" for queue in range(2)]
    return tuple(
        sum(size > 0 for _, size, _ in at.UNIT.iter_unpack(path.read_bytes()))
        for path in files
        if path.exists()
    )


@pytest.mark.campaign
def test_jobs_run_on_the_oldest_version(
    driver_of: Callable[[str], Driver], root: Path, tmp_path: Path
) -> None:
    driver = driver_of(VERSIONS[-1])
    at.flip_log(root, stored(root)[1, 9].log_offset + 90)
    target, out = str(tmp_path / "archive"), tmp_path / "out"
    audited = driver.run(job, arguments=["audit", str(root)])
    assert [row["kind"] for row in audited["frames"]["findings"]] == ["record-damaged"]
    made = driver.run(job, arguments=["archive", str(root), "--to", target])
    assert (made["facts"]["rows"], made["facts"]["bad_records"]) == (MESSAGES + 3, 1)
    arguments = ["rebuild", str(root), "--to", str(out), *SIZES]
    assert driver.run(job, arguments=arguments)["facts"]["bad_records"] == 1
    dry = ["--dry-run", "--topic", "Orders"]
    found = driver.run(job, arguments=["replay", target, "--archive", *dry])
    assert found["facts"]["messages"] == MESSAGES - 1
    assert driver.run(job, arguments=["dlq", str(root)])["code"] == 0


def test_a_job_is_a_command_with_progress_report_and_code(root: Path, tmp_path: Path) -> None:
    at.flip_log(root, stored(root)[1, 9].log_offset + 90)
    require(VERSIONS[0])
    done = subprocess.run(
        [str(python_of(VERSIONS[0])), "-m", "aerobee.cli", "pipeline", "audit", str(root),
         "--master", "local[1]", "--output", str(tmp_path / "tables")],
        capture_output=True, text=True, env=os.environ | quick(VERSIONS[0]), cwd=tmp_path,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "DAMAGE  record-damaged" in done.stdout
    assert "is DAMAGED: 1 finding" in done.stdout
    assert re.search(r"^\d+ s: reading the log$", done.stderr, re.MULTILINE)
    assert re.search(r"^\d+ s: comparing entries with records", done.stderr, re.MULTILINE)
    assert list((tmp_path / "tables" / "findings").glob("*.parquet"))
    # This Python has no PySpark.
    lacking = subprocess.run(
        [sys.executable, "-m", "aerobee.cli", "pipeline", "audit", str(root)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert lacking.returncode == 3
    assert lacking.stderr.count("\n") == 1
    assert "pip install '.[spark]'" in lacking.stderr


def request(function: Callable[..., Any], **given: Any) -> str:
    """A request as Driver.run sends it, for a caller that does not wait for the answer."""
    import base64
    import inspect
    import pickle
    import textwrap

    source = textwrap.dedent(inspect.getsource(function))
    fields = {"source": source, "name": function.__name__, "given": given}
    return base64.b64encode(pickle.dumps(fields)).decode() + "\n"
