"""Changes of groups and their offsets: a preview first, refused once that has moved on, and taken
back by the command that they print."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from aerobee.cli.cluster.consumer_groups.offset_moves import places, read_places
from aerobee.cli.printing.output import USAGE, CommandFailed
from aerobee.client import blocking_roles
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.testing import RunningBroker
from tests.unit.cli.groups.group_support import Run, committed, consuming, fill, taken


def settings(run: Run, group: str) -> dict[str, object] | None:
    """The settings of a group at the broker: those that an update would change."""
    code, out, err = run("group", "update", group, "--retries", "99", "--json")
    assert code == 0, err
    [change] = json.loads(out)["changes"]
    before: dict[str, object] | None = change["before"]
    return before


def command_in(err: str, word: str) -> list[str]:
    """The command that a line of standard error ends with, without the program's name and the name
    server, which `run` adds."""
    [line] = [line for line in err.splitlines() if word in line]
    words = shlex.split(line.partition(": ")[2])
    assert words.pop(0) == "aerobee"
    at = words.index("-n")
    del words[at : at + 2]
    return words


def test_a_group_is_made_changed_and_deleted_after_a_preview(run: Run) -> None:
    code, out, err = run("group", "create", "Made", "--retries", "3", "--broadcast", "off")
    assert (code, "nothing was changed" in err) == (0, True)
    assert re.search(r"bee +retries +3\n", out)
    assert run("group", "describe", "Made")[0] == 1
    words = command_in(err, "this does it")
    code, _, err = run(*words)
    assert (code, "group Made is created at bee" in err) == (0, True), err
    made = {"retries": 3, "retry_queues": 1, "consume": True, "broadcast": False, "notify": True}
    assert settings(run, "Made") == made
    code, _, err = run("group", "create", "Made")
    assert (code, "there is a group Made at bee already" in err) == (1, True)

    code, out, _ = run("group", "update", "Made", "--consume", "off", "--yes", "--json")
    [change] = json.loads(out)["changes"]
    assert (code, change["before"], change["after"]) == (0, made, {**made, "consume": False})
    code, _, err = run("group", "update", "Made", "--consume", "off", "--yes")
    assert (code, "has these settings already" in err) == (1, True)
    found = json.loads(run("group", "explain", "Made", "--json")[1])["findings"]
    assert "consume_disabled" in [one["kind"] for one in found]

    code, _, err = run("group", "delete", "Made")
    assert (code, "its offsets are in 0 queues" in err) == (0, True)
    code, _, err = run(*command_in(err, "this does it"))
    assert (code, "group Made is deleted at bee" in err) == (0, True), err
    for command in ("update", "delete"):
        code, _, err = run("group", command, "Made", "--yes")
        assert (code, "there is no consumer group Made" in err) == (1, True)


def test_the_second_change_of_a_group_is_refused_by_its_preview(run: Run) -> None:
    assert run("group", "create", "Twice", "--yes")[0] == 0
    first = command_in(run("group", "update", "Twice", "--retries", "5")[2], "this does it")
    second = command_in(run("group", "update", "Twice", "--consume", "off")[2], "this does it")
    assert run(*first)[0] == 0
    code, _, err = run(*second)
    assert (code, "has moved on" in err) == (1, True)
    found = settings(run, "Twice")
    assert found is not None
    assert (found["retries"], found["consume"]) == (5, True)


def test_what_a_broker_does_not_take_is_its_refusal(run: Run) -> None:
    code, _, err = run("group", "create", "Refused", "--retry-queues", "1000000", "--yes")
    assert (code, "retryQueueNums" in err) == (1, True)
    code, _, err = run("group", "create", "Refused", "--broker", "wasp")
    assert (code, "there is no broker wasp: there is bee" in err) == (1, True)


def test_two_who_reset_a_group_do_not_surprise_each_other(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Both")
    admin.commit_offset("Both", MessageQueue("Both", "bee", 0), 2)
    previews = [run("offset", "reset", "Both", "Both", "--to", to) for to in ("earliest", "latest")]
    first, second = (command_in(err, "this does it") for _, _, err in previews)
    assert run(*first)[0] == 0
    code, _, err = run(*second)
    assert (code, "has moved on" in err) == (1, True)
    assert committed(run, "Both", "Both") == 0


def test_a_reset_is_taken_back_by_the_command_that_it_prints(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Undone")
    admin.commit_offset("Undo", MessageQueue("Undone", "bee", 0), 2)
    _, _, err = run("offset", "reset", "Undo", "Undone", "--to", "earliest", "--yes")
    assert committed(run, "Undo", "Undone") == 0
    words = command_in(err, "this takes it back")
    assert words == ["offset", "undo", "Undo", "Undone/bee=0:2", "--yes"]
    code, out, _ = run(*words[:-1])
    assert (code, "forward by 2" in out, committed(run, "Undo", "Undone")) == (0, True, 0)
    code, _, err = run(*words)
    assert (code, committed(run, "Undo", "Undone")) == (0, 2)
    # And the undo by the command that it prints.
    assert run(*command_in(err, "this takes it back"))[0] == 0
    assert committed(run, "Undo", "Undone") == 0
    code, _, err = run("offset", "undo", "Undo", "Undone/bee=7:2", "--yes")
    assert (code, "has nothing in queue 7 of Undone at bee" in err) == (1, True)
    code, _, err = run("offset", "undo", "Undo", "Undone/bee=0:9", "--yes")
    assert (code, committed(run, "Undo", "Undone")) == (1, 0), err


def test_members_that_are_online_go_back_too(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "UndoneOnline")
    with consuming(running, "UndoOn", "UndoneOnline") as got:
        assert taken(got, 3) == [b"0", b"1", b"2"]
        while committed(run, "UndoOn", "UndoneOnline") != 3:
            pass  # it commits every 50 ms
        code, _, err = run("offset", "undo", "UndoOn", "UndoneOnline/bee=0:1", "--yes")
        assert (code, "bee tells " in err) == (0, True), err
        assert taken(got, 2) == [b"1", b"2"]
    code, _, err = run("offset", "undo", "UndoOn", "UndoneOnline/bee=0:9", "--yes")
    assert code == 1, err


def test_places_are_read_as_they_are_written() -> None:
    offsets = {
        MessageQueue(topic, broker, queue_id): 10 * queue_id
        for topic in ("A", "%RETRY%b") for broker in ("a", "b=c") for queue_id in (0, 11, 2)
    }  # fmt: skip
    words = list(places(offsets))
    assert (len(words), words[0]) == (4, "%RETRY%b/a=0:0,2:20,11:110")
    assert read_places(words) == offsets


@pytest.mark.parametrize("word", ["", "T", "T/b", "T/b=", "T/b=0", "T/b=0:x", "T/b=0:-1", "/b=0:1"])
def test_what_names_no_offsets_is_an_error_of_usage(word: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        read_places([word])
    assert refused.value.code == USAGE
    with pytest.raises(CommandFailed):
        read_places(["T/b=0:1", "T/b=0:1"])
