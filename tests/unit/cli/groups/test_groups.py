"""Commands about groups and their offsets, and deletion of topics, against a real broker."""

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee.client import blocking_roles
from aerobee.client.message import ReceivedMessage
from aerobee.client.options import ConsumeFrom, Model, PushOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.headers.admin import RegisterBrokerHeader
from aerobee.remoting.calling.blocking_caller import BlockingCaller, ConnectOptions
from aerobee.testing import RunningBroker
from tests.ports import free_port
from tests.unit.cli.groups.group_support import (
    WAIT_S,
    Run,
    committed,
    consuming,
    fill,
    stuck,
    taken,
)

# --- groups ---------------------------------------------------------------------------------------


def test_groups_are_listed_with_members_and_lag(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Listed")
    admin.commit_offset("Listed", MessageQueue("Listed", "bee", 0), 1)
    code, out, _ = run("group", "list", "--json")
    assert code == 0
    [one] = [group for group in json.loads(out) if group["group"] == "Listed"]
    assert one == {
        "group": "Listed", "brokers": ["bee"], "members": 0, "topics": 1, "lag": 2,
        "lag_at_least": 2, "unknown_queues": 0, "given_out": 0, "retries": 0, "dead": 0,
        "stuck_queues": 0,
    }  # fmt: skip
    _, out, _ = run("group", "list")
    assert "Listed" in out
    assert "TOOLS_CONSUMER" not in out
    assert "TOOLS_CONSUMER" in run("group", "list", "--all")[1]


def test_a_group_is_described_with_its_members(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Described")
    with consuming(running, "Describing", "Described") as got:
        assert taken(got, 3) == [b"0", b"1", b"2"]
        code, out, _ = run("group", "describe", "Describing", "--json")
        found = json.loads(out)
        assert (code, found["brokers"], found["message_model"]) == (0, ["bee"], "CLUSTERING")
        [member] = found["members"]
        assert member["language"] == "PYTHON"
        topics = {one["topic"]: one for one in found["topics"]}
        assert topics["Described"]["subscription"] == "*"
        code, out, _ = run("group", "describe", "Describing")
        assert (code, member["client_id"] in out) == (0, True)
        assert "1 members online; CONSUME_PASSIVELY, CLUSTERING" in out
    code, _, err = run("group", "describe", "Nobody")
    assert (code, "there is no consumer group Nobody" in err) == (1, True)
    assert run("group", "describe", "no group")[0] == 2


@pytest.mark.parametrize("options", [{}, {"orderly": True, "orderly_suspend_ms": 10}])
def test_a_group_that_has_consumed_nothing_is_behind_by_all_and_can_be_reset(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin, options: dict[str, Any]
) -> None:
    """Its listener hangs on the first message, or fails on it: it has never committed an offset."""
    name = f"Stuck{len(options)}"
    fill(running, admin, name)
    with stuck(running, admin, name, name, **options):
        [one] = [
            group for group in json.loads(run("group", "list", "--json")[1])
            if group["group"] == name
        ]  # fmt: skip
        assert (one["members"], one["lag"]) == (1, 3)
        topics = json.loads(run("group", "describe", name, "--json")[1])["topics"]
        assert {topic["topic"]: topic["lag"] for topic in topics} == {
            name: 3, f"%RETRY%{name}": 0,
        }  # fmt: skip
        rows = json.loads(run("offset", "show", name, "--json")[1])
        assert [row["lag"] for row in rows if row["topic"] == name] == [3]
        page = urllib.request.urlopen(f"http://{running.http}/metrics").read().decode()
        [line] = [
            line for line in page.splitlines()
            if line.startswith("rocketmq_consumer_lag_messages{") and f'topic="{name}"' in line
        ]  # fmt: skip
        assert line.endswith(" 3.0")
        code, out, err = run("offset", "reset", name, name, "--to", "latest", "--yes")
        assert (code, "forward by 3" in out, "bee tells" in err) == (0, True, True), err


def test_a_group_that_fails_on_all_is_behind_by_what_waits_for_its_next_try(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    """0 before: it gives each message back, and commits as if it had consumed it."""
    fill(running, admin, "Failed")
    failed = threading.Semaphore(0)

    def listener(_messages: list[ReceivedMessage]) -> None:
        failed.release()
        raise RuntimeError("on purpose")

    options = PushOptions(consume_from=ConsumeFrom.FIRST, offset_store_interval_s=0.02)
    retry = "%RETRY%Failing"
    with blocking_roles.PushConsumer(running.name_server, "Failing", listener, options) as consumer:
        consumer.subscribe("Failed")
        for _ in range(3):
            assert failed.acquire(timeout=WAIT_S)
        # They are given back, and the offset behind them is committed.
        until = time.monotonic() + WAIT_S
        while committed(run, "Failing", "Failed") < 3:
            assert time.monotonic() < until
    # The first of them comes again after ten seconds.
    listed = json.loads(run("group", "list", "--json")[1])
    assert [one["lag"] for one in listed if one["group"] == "Failing"] == [3]
    topics = json.loads(run("group", "describe", "Failing", "--json")[1])["topics"]
    assert {one["topic"]: one["lag"] for one in topics} == {"Failed": 0, retry: 3}
    assert "3 messages that it failed on wait" in run("group", "describe", "Failing")[2]
    assert "in none of these queues yet" in run("offset", "show", "Failing")[2]
    assert admin.group_stats("Failing").waiting_retries == 3
    page = urllib.request.urlopen(f"http://{running.http}/metrics").read().decode()
    [line] = [
        line for line in page.splitlines()
        if line.startswith("rocketmq_consumer_lag_messages{") and f'topic="{retry}"' in line
    ]  # fmt: skip
    assert line.endswith(" 3.0")


def test_members_that_keep_their_offsets_have_no_number(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin, tmp_path: Path
) -> None:
    fill(running, admin, "Each")
    options = {
        "model": Model.BROADCASTING,
        "offset_directory": tmp_path,
        "consume_from": ConsumeFrom.FIRST,
    }
    with stuck(running, admin, "Keeping", "Each", **options):
        listed = json.loads(run("group", "list", "--json")[1])
        assert [one["lag"] for one in listed if one["group"] == "Keeping"] == [None]
        code, out, err = run("group", "describe", "Keeping")
        assert (code, "broadcast" in out, "no broker knows" in err) == (0, True, True)
        for words in (("show", "Keeping"), ("reset", "Keeping", "Each", "--to", "earliest")):
            code, _, err = run("offset", *words)
            assert (code, "keep their offsets themselves" in err) == (1, True)


@contextmanager
def registered(running: RunningBroker, name: str) -> Iterator[None]:
    """A broker that the name server knows, and that listens nowhere."""
    header = RegisterBrokerHeader(name, f"127.0.0.1:{free_port()}", "DefaultCluster", 0)
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}},"filterServerList":[]}'
    with BlockingCaller(running.name_server, ConnectOptions()) as caller:
        command = make_request(RequestCode.REGISTER_BROKER, header.to_ext(), body)
        assert caller.call(command).code == 0
        yield


def test_a_broker_that_is_away_is_named_and_the_rest_is_shown(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Rest")
    admin.commit_offset("Rest", MessageQueue("Rest", "bee", 0), 1)
    with registered(running, "wasp"):
        for words in (("list",), ("describe", "Rest"), ("explain", "Rest")):
            code, out, err = run("group", *words)
            assert (code, "Rest" in out, "wasp does not answer" in err) == (3, True, True), err
        code, out, _ = run("offset", "show", "Rest", "--json")
        assert (code, [one["lag"] for one in json.loads(out)]) == (3, [2])
        # A change would be half done.
        for words in (("delete", "Rest"), ("update", "Rest", "--retries", "1")):
            assert run("group", *words, "--yes")[0] == 3


# --- offsets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["offset", "reset", "Dry", "Dry", "--to", "earliest"],
        ["offset", "clone", "Dry", "DryTarget"],
        ["topic", "delete", "Dry"],
    ],
)
def test_a_dry_run_is_what_is_done_without_yes(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin, words: list[str]
) -> None:
    if admin.topic_settings("Dry")["bee"] is None:
        fill(running, admin, "Dry")
        admin.commit_offset("Dry", MessageQueue("Dry", "bee", 0), 2)
    assert run(*words, "--dry-run") == run(*words)
    assert committed(run, "Dry", "Dry") == 2
    with pytest.raises(SystemExit) as refused:
        run(*words, "--dry-run", "--yes")
    assert refused.value.code == 2


def test_offsets_are_shown_by_queue(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Shown")
    admin.commit_offset("Showing", MessageQueue("Shown", "bee", 0), 1)
    code, out, _ = run("offset", "show", "Showing", "--json")
    [one] = json.loads(out)
    assert (code, one.pop("last_consumed_timestamp_ms") > 0) == (0, True)
    expected: dict[str, Any] = {"topic": "Shown", "broker": "bee", "queue": 0}
    assert one == {**expected, "offset": 1, "begin": 1, "end": 3, "lag": 2, "given_out": 0}
    assert "Shown" in run("offset", "show", "Showing")[1]
    code, _, err = run("offset", "show", "Nobody")
    assert (code, "the group Nobody has no offset" in err) == (1, True)


def test_a_group_that_is_not_online_is_reset_by_its_offsets(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Offline")
    admin.commit_offset("Off", MessageQueue("Offline", "bee", 0), 2)
    code, out, err = run("offset", "reset", "Off", "Offline", "--to", "earliest")
    assert code == 0
    assert "back by 2" in out
    assert "nothing was changed; this does it: aerobee offset reset Off Offline" in err
    assert committed(run, "Off", "Offline") == 2
    code, out, err = run("offset", "reset", "Off", "Offline", "--to", "earliest", "--yes")
    assert (code, "2 messages back, 0 forward" in err) == (0, True)
    assert committed(run, "Off", "Offline") == 0
    # Ahead only where that was not excluded.
    for options, offset in ((["--only-back"], 0), ([], 3)):
        code, out, _ = run(
            "offset", "reset", "Off", "Offline", "--to", "latest", "--yes", "--json", *options
        )
        result = json.loads(out)
        assert (code, result["done"], result["told"]) == (0, True, {})
        assert [one["after"] for one in result["queues"]] == [offset]
        assert committed(run, "Off", "Offline") == offset


def test_members_that_are_online_are_told(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Online")
    with consuming(running, "On", "Online") as got:
        assert taken(got, 3) == [b"0", b"1", b"2"]
        while committed(run, "On", "Online") != 3:
            pass  # it commits every 50 ms
        code, _, err = run("offset", "reset", "On", "Online", "--to", "earliest", "--yes")
        assert (code, "bee tells " in err) == (0, True)
        assert taken(got, 3) == [b"0", b"1", b"2"]


def test_a_reset_says_which_time_it_understood_and_goes_to_the_nearest_message(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Nearest")
    admin.commit_offset("Near", MessageQueue("Nearest", "bee", 0), 3)
    for where, said, offset in (
        ("2001-02-03T04:05", "stored nearest to 2001-02-03 04:05:00.000 in local time\n", 0),
        ("2099-01-01", "2099-01-01 00:00:00.000 in local time is in the future: queues go to", 2),
    ):
        code, _, err = run("offset", "reset", "Near", "Nearest", "--to", where, "--yes")
        assert (code, said in err, committed(run, "Near", "Nearest")) == (0, True, offset), err


def test_an_impossible_reset_is_refused(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Impossible")
    admin.commit_offset("Imp", MessageQueue("Impossible", "bee", 0), 2)
    for arguments, code, word in (
        (("Imp", "Impossible", "--to", "somewhere"), 2, "not a time"),
        (("Imp", "Impossible", "--to", "2"), 2, "give earliest, latest, a time such as 2025"),
        (("Imp", "Nowhere", "--to", "latest"), 1, "Nowhere"),
        (("Nobody", "Impossible", "--to", "latest"), 1, "has no offset"),
        (("Imp", "Impossible", "--to", "latest", "--broker", "wasp"), 1, "no broker wasp"),
    ):
        found, _, err = run("offset", "reset", *arguments, "--yes")
        assert (found, word in err) == (code, True), err
    assert committed(run, "Imp", "Impossible") == 2


def test_a_group_gets_another_ones_offsets(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Cloned")
    admin.commit_offset("CloneSource", MessageQueue("Cloned", "bee", 0), 2)
    code, out, err = run("offset", "clone", "CloneSource", "CloneTarget")
    assert (code, out.split()[-3:], "--yes" in err) == (0, ["none", "2", "new"], True)
    assert "there is no group CloneTarget yet: it is made" in err
    assert run("offset", "show", "CloneTarget")[0] == 1
    code, out, _ = run("offset", "clone", "CloneSource", "CloneTarget", "--yes", "--json")
    assert (code, json.loads(out)["queues"][0]["change"]) == (0, 2)
    assert committed(run, "CloneTarget", "Cloned") == 2
    code, _, err = run("offset", "clone", "Nobody", "CloneTarget", "--yes")
    assert (code, "Nobody has no offset" in err) == (1, True)
    code, _, err = run("offset", "clone", "CloneSource", "CloneSource", "--yes")
    assert (code, "CloneSource has its own offsets" in err) == (2, True)


def test_new_offsets_of_a_clone_are_counted_by_themselves_and_retries_stay(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Part")
    fill(running, admin, "%RETRY%PartSource")
    for topic in ("Part", "%RETRY%PartSource"):
        admin.commit_offset("PartSource", MessageQueue(topic, "bee", 0), 2)
    _, out, _ = run("offset", "clone", "PartSource", "PartTarget")
    assert "RETRY" not in out
    _, _, err = run("offset", "clone", "PartSource", "PartTarget", "--yes")
    assert "group PartTarget: 0 messages back, 0 forward, 1 new offsets" in err
    assert "RETRY" not in run("offset", "show", "PartTarget")[1]
    admin.commit_offset("PartSource", MessageQueue("Part", "bee", 0), 3)
    _, out, err = run("offset", "clone", "PartSource", "PartTarget", "--yes")
    assert "forward by 1" in out
    assert "group PartTarget: 0 messages back, 1 forward\n" in err
    assert "there is no group" not in err


# --- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_deleted_when_that_is_confirmed(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Deleted")
    admin.commit_offset("Deleting", MessageQueue("Deleted", "bee", 0), 2)
    code, _, err = run("topic", "delete", "Deleted")
    assert (code, "1 queues, 3 messages" in err, "Deleting" in err) == (0, True, True)
    assert "nothing was deleted" in err
    assert admin.topic_settings("Deleted")["bee"] is not None
    code, out, _ = run("topic", "delete", "Deleted", "--yes", "--json")
    assert (code, json.loads(out)["deleted"]) == (0, True)
    assert admin.topic_settings("Deleted")["bee"] is None
    assert run("topic", "delete", "Deleted", "--yes")[0] == 1
