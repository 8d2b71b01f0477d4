"""`aerobee dlq` against a real broker: what is listed, read, written into files, sent, purged."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.cli.main import main
from aerobee.client.administration.dead_letter_reasons import GIVEN_UP
from aerobee.client.administration.dead_letters import progress_group
from aerobee.client.administration.resending import RESENT_FROM, Resending
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.errors import CallTimeout
from aerobee.client.message import ReceivedMessage
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire
from tests.ports import free_port
from tests.unit.cli.delivery.delivery_support import (
    Run,
    committed,
    dead_letters,
    give_back,
    read,
    runner,
)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with testing.broker(broker_name="bee") as broker:
        yield broker


@pytest.fixture
def run(running: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(running, capsys)


def resent(running: RunningBroker, group: str) -> list[ReceivedMessage]:
    """The messages that the group's retry topic got from `dlq resend`."""
    return [one for one in read(running, f"%RETRY%{group}") if RESENT_FROM in one.properties]


# --- reading --------------------------------------------------------------------------------------


def test_groups_with_dead_letters_are_listed(running: RunningBroker, run: Run) -> None:
    dead_letters(running, "Listed", "ListedTopic", b"a", b"b")
    code, out, _ = run("dlq", "list", "--json")
    [row] = [one for one in json.loads(out) if one["group"] == "Listed"]
    oldest, newest = row.pop("oldest_timestamp_ms"), row.pop("newest_timestamp_ms")
    letters = read(running, "%DLQ%Listed")
    assert [oldest, newest] == [one.store_timestamp_ms for one in letters]
    assert code == 0
    assert row == {
        "group": "Listed", "messages": 2, "not_resent": 2, "brokers": ["bee"],
        "brokers_unanswered": [],
    }  # fmt: skip
    assert "Listed" in run("dlq", "list")[1]


def test_a_peek_escapes_what_would_move_the_cursor(running: RunningBroker, run: Run) -> None:
    [first, second] = dead_letters(running, "Peeked", "PeekedTopic", b"\x1b[2Jgone", b"two")
    code, out, err = run("dlq", "peek", "Peeked", "--count", "1")
    assert code == 0
    assert "\\x1b[2Jgone" in out
    assert "\x1b" not in out
    assert "1 shown, 1 more" in err
    assert "\\x1b[2Jgone" in run("dlq", "peek", "Peeked", "--full")[1]
    lines = [json.loads(line) for line in run("dlq", "peek", "Peeked", "--json")[1].splitlines()]
    assert [one["msg_id"] for one in lines] == [first, second]
    assert lines[0]["body"] == "\x1b[2Jgone"
    told = {name: lines[1][name] for name in ("group", "original_topic", "tries", "reason")}
    assert told == {
        "group": "Peeked", "original_topic": "PeekedTopic", "tries": 0, "reason": GIVEN_UP,
    }  # fmt: skip


def test_unknown_groups_are_named_with_the_nearest(running: RunningBroker, run: Run) -> None:
    dead_letters(running, "Nearest", "NearestTopic", b"a")
    for command in (("peek",), ("resend",), ("purge",)):
        code, _, err = run("dlq", *command, "Nearist")
        assert (code, "did you mean Nearest?" in err) == (1, True)


def test_an_export_is_a_new_file_with_a_line_for_each(
    running: RunningBroker, run: Run, tmp_path: Path
) -> None:
    ids = dead_letters(running, "Exported", "ExportedTopic", *(b"%d" % n for n in range(40)))
    path = tmp_path / "letters"
    code, _, err = run("dlq", "export", "Exported", str(path))
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert code == 0
    assert "40 dead letters" in err
    assert [one["msg_id"] for one in lines] == ids
    assert run("dlq", "export", "Exported", str(path))[0] == 2
    assert os.listdir(tmp_path) == ["letters"]


def test_a_full_disk_ends_an_export_without_a_file(
    running: RunningBroker, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letters(running, "FullDisk", "FullDiskTopic", b"a")

    fsync = os.fsync

    def full(descriptor: int) -> None:
        # The broker runs in this process, and its disk has room.
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(tmp_path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr("aerobee.cli.printing.whole_file.os.fsync", full)
    code, _, err = run("dlq", "export", "FullDisk", str(tmp_path / "letters"))
    assert code == 1
    assert "letters cannot be written: No space left on device" in err
    assert os.listdir(tmp_path) == []


# --- sending again --------------------------------------------------------------------------------


def test_a_resend_reaches_the_group_alone_and_once(running: RunningBroker, run: Run) -> None:
    ids = dead_letters(running, "Again", "AgainTopic", b"a", b"b", b"c")
    code, _, err = run("dlq", "resend", "Again")
    assert (code, resent(running, "Again")) == (0, [])
    assert "nobody of it is online" in err
    command = shlex.split(err.strip().splitlines()[-1].split(": ", 1)[1])
    # The name server is in it already.
    assert run(*command[1:-5], *command[-3:])[0] == 0
    copies = resent(running, "Again")
    assert sorted(one.msg_id for one in copies) == sorted(ids)
    for one in copies:
        assert (one.reconsume_times, one.tags, one.keys) == (0, "red", ("k",))
        assert one.properties["RETRY_TOPIC"] == "AgainTopic"
    assert len(read(running, "AgainTopic")) == 3
    code, _, err = run("dlq", "resend", "Again", "--yes")
    assert (code, len(resent(running, "Again"))) == (0, 3)
    assert "were sent again already" in err
    rows = json.loads(run("dlq", "list", "--json")[1])
    assert [one["not_resent"] for one in rows if one["group"] == "Again"] == [0]


def test_a_resend_that_was_broken_off_sends_nothing_twice(
    running: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = dead_letters(running, "Broken", "BrokenTopic", *(b"%d" % n for n in range(40)))
    send = Resending.to_group
    sent = 0

    async def breaks(self: Resending, group: str, message: ReceivedMessage) -> object:
        nonlocal sent
        sent += 1
        done = await send(self, group, message)
        if message.msg_id == ids[20]:
            raise CallTimeout("no answer")
        return done

    monkeypatch.setattr(Resending, "to_group", breaks)
    code, _, err = run("dlq", "resend", "Broken", "--yes")
    assert code == 3
    assert "the same command goes on there" in err
    assert committed(running, progress_group("Broken"), "%DLQ%Broken") == 20
    monkeypatch.setattr(Resending, "to_group", send)
    code, out, _ = run("dlq", "resend", "Broken", "--yes", "--json")
    found = json.loads(out)
    # Those behind the break were sent at the same time as those before it.
    assert (code, found["sent"], found["passed_over"]) == (0, 8, 12)
    assert sorted(one.msg_id for one in resent(running, "Broken")) == sorted(ids)


def test_one_letter_is_sent_by_its_id_and_not_again_with_the_rest(
    running: RunningBroker, run: Run
) -> None:
    ids = dead_letters(running, "Single", "SingleTopic", b"a", b"b")
    letter = read(running, "%DLQ%Single")[1]
    assert run("dlq", "resend", "Single", "--id", letter.offset_msg_id, "--yes")[0] == 0
    code, _, err = run("dlq", "resend", "Single", "--id", ids[1], "--yes")
    assert (code, "a letter is sent once" in err) == (1, True)
    assert run("dlq", "resend", "Single", "--yes")[0] == 0
    assert sorted(one.msg_id for one in resent(running, "Single")) == sorted(ids)
    assert run("dlq", "resend", "Single", "--id", "0" * 32)[0] == 1
    assert run("dlq", "resend", "Single", "--id", "short")[0] == 2


def test_letters_that_our_producer_would_not_send_are_sent_again(
    running: RunningBroker, run: Run
) -> None:
    """Without an id or a body, with a number of 5,000 digits, packed in a way that is not known."""
    dead_letters(running, "Odd", "OddTopic", b"a")

    async def send_odd() -> None:
        wire = await Wire.to(running.broker)
        for body, flag in ((b"", 0), (b"packed", 0x1 | 0x700)):
            properties = f"MAX_RECONSUME_TIMES\x01{'9' * 5000}"
            answer = await wire.send("OddTopic", body, properties=properties, sys_flag=flag)
            assert answer.code == 0, answer.remark
        wire.caller.close()

    asyncio.run(send_odd())
    give_back(running, "Odd", "OddTopic", -1)
    letters = read(running, "%DLQ%Odd")
    lines = [json.loads(line) for line in run("dlq", "peek", "Odd", "--json")[1].splitlines()]
    assert [one["reason"] for one in lines] == [GIVEN_UP] * len(letters)
    assert lines[-1]["unreadable"]
    code, _, err = run("dlq", "resend", "Odd", "--yes")
    assert (code, f"{len(letters)} dead letters went" in err) == (0, True)
    # Those without an id are recognized by the id of their place.
    commit_back(running, progress_group("Odd"), "%DLQ%Odd")
    code, out, _ = run("dlq", "resend", "Odd", "--yes", "--json")
    assert (json.loads(out)["sent"], json.loads(out)["passed_over"]) == (0, len(letters))


def commit_back(running: RunningBroker, group: str, topic: str) -> None:
    """Set a group back to the beginning of the one queue of a topic."""

    async def do() -> None:
        async with PullConsumer(running.name_server, group) as consumer:
            await consumer.commit(MessageQueue(topic, "bee", 0), 0)

    asyncio.run(do())


def test_letters_that_came_meanwhile_refuse_what_was_shown_before(
    running: RunningBroker, run: Run
) -> None:
    dead_letters(running, "Meanwhile", "MeanwhileTopic", b"a")
    for command in ("resend", "purge"):
        _, _, err = run("dlq", command, "Meanwhile")
        expected = err.rsplit(" ", 1)[1].strip()
        give_back(running, "Meanwhile", "MeanwhileTopic", -1)
        code, _, err = run("dlq", command, "Meanwhile", "--yes", "--expect", expected)
        assert (code, "has moved on" in err) == (1, True)


def test_a_purge_deletes_the_letters_and_the_next_is_sent_again(
    running: RunningBroker, run: Run
) -> None:
    dead_letters(running, "Purged", "PurgedTopic", b"a", b"b")
    assert run("dlq", "resend", "Purged", "--yes")[0] == 0
    code, _, err = run("dlq", "purge", "Purged")
    assert code == 0
    assert "aerobee dlq export Purged FILE" in err
    assert len(read(running, "%DLQ%Purged")) == 2
    code, out, _ = run("dlq", "purge", "Purged", "--yes", "--json")
    assert (code, json.loads(out)["messages"], json.loads(out)["done"]) == (0, 2, True)
    assert run("dlq", "peek", "Purged")[0] == 1
    dead_letters(running, "Purged", "PurgedLater", b"c")
    assert run("dlq", "resend", "Purged", "--yes")[0] == 0
    assert [one.body for one in resent(running, "Purged")][2:] == [b"c"]


# --- brokers and name servers that are away -------------------------------------------------------


@contextmanager
def away(running: RunningBroker) -> Iterator[None]:
    """The name server knows a broker where nobody listens, as long as its connection is open."""
    identity = {
        "brokerName": "away",
        "brokerAddr": f"127.0.0.1:{free_port()}",
        "clusterName": running.settings.cluster_name,
        "brokerId": 0,
        "haServerAddr": "",
    }
    version = {"counter": 1, "timestamp": 1}
    body = {
        "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": {}},
        "filterServerList": [],
    }

    async def register() -> Wire:
        wire = await Wire.to(running.name_server)
        code = RequestCode.REGISTER_BROKER
        answer = await wire.call(code, identity, json.dumps(body).encode())
        assert answer.code == 0, answer.remark
        return wire

    with asyncio.Runner() as runner:
        wire = runner.run(register())
        yield
        wire.caller.close()


def test_a_broker_that_does_not_answer_is_named_and_the_rest_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with testing.broker(broker_name="bee") as running:
        run = runner(running, capsys)
        [msg_id] = dead_letters(running, "Partly", "PartlyTopic", b"a")
        with away(running):
            code, out, err = run("dlq", "list")
            assert (code, "Partly" in out, "1 + ?" in out) == (3, True, True)
            assert err.count("away did not answer") == 1
            [row] = json.loads(run("dlq", "list", "--json")[1])
            assert (row["messages"], row["brokers_unanswered"]) == (1, ["away"])
            code, out, err = run("dlq", "peek", "Partly")
            assert (code, msg_id in out, "away did not answer" in err) == (3, True, True)
            # These would be taken for all.
            assert run("dlq", "export", "Partly", str(tmp_path / "letters"))[0] == 3
            assert os.listdir(tmp_path) == []
            assert run("dlq", "purge", "Partly", "--yes")[0] == 3
            assert len(read(running, "%DLQ%Partly")) == 1
            code, out, err = run("message", "show", msg_id)
            assert (code, "dead since" in out, "away did not answer" in err) == (3, True, True)
            code, _, err = run("message", "resend", "PartlyTopic", msg_id, "--yes")
            assert (code, f"{msg_id} went to PartlyTopic" in err) == (3, True)
            code, _, err = run("message", "skip", "Partly", "PartlyTopic", "--queue", "0", "--yes")
            assert (code, "Partly goes on behind it" in err) == (3, True)
            code, _, err = run("dlq", "resend", "Partly", "--yes")
            assert (code, "2 dead letters went to" in err) == (3, True)
            # Two of three name servers are away.
            names = f"127.0.0.1:{free_port()};127.0.0.1:{free_port()};{running.name_server}"
            assert main(["dlq", "peek", "Partly", "-n", names]) == 3
            assert msg_id in capsys.readouterr().out


def test_a_file_that_cannot_grow_any_more_is_taken_away(
    running: RunningBroker, tmp_path: Path
) -> None:
    dead_letters(running, "Large", "LargeTopic", *[bytes(4000)] * 8)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))

    done = subprocess.run(
        [
            *(sys.executable, "-m", "aerobee.cli", "dlq", "export", "Large"),
            *(str(tmp_path / "letters"), "-n", running.name_server),
        ],
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, "letters cannot be written: File too large" in done.stderr) == (
        1,
        True,
    ), done.stderr
    assert os.listdir(tmp_path) == []
