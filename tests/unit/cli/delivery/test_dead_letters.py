"""`aerobee dlq` against a real broker: what is listed, read, written into files, sent, purged."""

from __future__ import annotations

import errno
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.client.administration.dead_letters import GIVEN_UP, progress_group
from aerobee.client.administration.resending import RESENT_FROM, Resending
from aerobee.client.errors import CallTimeout
from aerobee.client.message import ReceivedMessage
from aerobee.testing import RunningBroker
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

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

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
