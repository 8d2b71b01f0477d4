"""`aerobee message show`, `trace`, `resend` and `skip`, and `topic purge`, at a real broker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aerobee import testing
from aerobee.broker.requests.administration.message_state import MessageStates
from aerobee.cli.arguments import messages as arguments
from aerobee.client import blocking_roles
from aerobee.client.administration import foreign_places
from aerobee.client.administration.resending import RESENT_FROM
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ConsumeFrom, ProducerOptions, PushOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.names import TRACE_TOPIC
from aerobee.testing import RunningBroker
from tests.unit.cli.delivery.delivery_support import (
    BROKER,
    Run,
    committed,
    dead_letters,
    give_back,
    read,
    runner,
    send,
    until,
)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with testing.broker(broker_name=BROKER, property_filter=True) as broker:
        yield broker


@pytest.fixture
def run(running: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(running, capsys)


@contextmanager
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker that does not know our request, as RocketMQ's."""

    def unknown(*_: object) -> None:
        raise BadRequest(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    with monkeypatch.context() as patch:
        patch.setattr(MessageStates, "state", unknown)
        yield


def commit(running: RunningBroker, group: str, topic: str, offset: int) -> None:
    async def do() -> None:
        async with PullConsumer(running.name_server, group) as consumer:
            await consumer.commit(MessageQueue(topic, BROKER, 0), offset)

    asyncio.run(do())


@contextmanager
def online(
    running: RunningBroker, group: str, topic: str, expression: str, *, fails: bool = False
) -> Iterator[list[ReceivedMessage]]:
    """A member of a group; what it got."""
    got: list[ReceivedMessage] = []

    def listener(messages: list[ReceivedMessage]) -> None:
        got.extend(messages)
        if fails:
            raise RuntimeError("the listener fails")

    options = PushOptions(consume_from=ConsumeFrom.FIRST, offset_store_interval_s=0.05)
    with blocking_roles.PushConsumer(running.name_server, group, listener, options) as consumer:
        consumer.subscribe(topic, expression)
        yield got


def states(run: Run, msg_id: str, *more: str) -> dict[str, tuple[str, int]]:
    code, out, err = run("message", "show", msg_id, "--json", *more)
    assert code == 0, err
    [shown] = json.loads(out)
    return {one["group"]: (one["state"], one["tries"]) for one in shown["groups"]}


# --- show -----------------------------------------------------------------------------------------


def test_each_group_is_shown_with_how_far_it_is(
    running: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = dead_letters(running, "Dead", "Shown", b"a", b"b")
    commit(running, "Past", "Shown", 2)
    commit(running, "Before", "Shown", 1)
    give_back(running, "Waits", "Shown", 5)
    expected = {
        "Dead": ("dead", 0),
        "Past": ("passed", 0),
        "Before": ("not yet", 0),
        "Waits": ("waits for its next try", 1),
    }
    assert states(run, ids[1]) == expected
    offset_id = read(running, "Shown")[1].offset_msg_id
    assert states(run, offset_id) == expected
    # The id of a dead letter leads to its message.
    assert states(run, read(running, "%DLQ%Dead")[1].offset_msg_id) == expected
    with foreign(monkeypatch):
        assert states(run, ids[1], "--topic", "Shown") == expected
        assert "does not tell what was given out" in run("message", "show", ids[1])[2]
    _, out, _ = run("message", "show", ids[1])
    assert "not yet: 0 messages before it" in out
    assert "try 1 of 16 at 20" in out
    assert "dead since 20" in out


def test_a_filter_says_whether_a_group_gets_a_message(
    running: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    [msg_id] = send(running, "Filtered", Message("Filtered", b"a", tags="red"))
    with (
        online(running, "Red", "Filtered", "red || blue") as got,
        online(running, "Green", "Filtered", "green"),
    ):
        until(lambda: bool(got) and committed(running, "Red", "Filtered") == 1)
        until(lambda: "Green" in states(run, msg_id))
        expected = {"Red": ("consumed", 0), "Green": ("filtered out", 0)}
        assert states(run, msg_id) == expected
        with foreign(monkeypatch):
            assert states(run, msg_id) == expected


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Message("Later", b"a", delay_level=5), "delayed"),
        (Message("Later", b"a", delay_s=3600), "timed"),
        (Message("Later", b"a", properties={"TRAN_MSG": "true", "PGROUP": "P"}), "half"),
    ],
    ids=["delayed", "timed", "half"],
)
def test_a_message_that_waits_is_shown_with_its_time(
    running: RunningBroker, run: Run, message: Message, kind: str
) -> None:
    [msg_id] = send(running, "Later", message)
    code, out, _ = run("message", "show", msg_id, "--json")
    [shown] = json.loads(out)
    assert (code, shown["waiting"]["topic"], shown["waiting"]["kind"]) == (0, "Later", kind)
    waits_s = {"delayed": 60, "timed": 3600}
    if kind in waits_s:
        due_ms = shown["waiting"]["due_timestamp_ms"]
        wanted_ms = shown["message"]["born_timestamp_ms"] + waits_s[kind] * 1000
        assert wanted_ms <= due_ms < wanted_ms + 10_000
    told = "was not committed" if kind == "half" else "it goes to Later at 20"
    assert told in run("message", "show", msg_id)[1]


def test_an_id_that_nobody_has_is_not_found_and_says_where_it_was_looked_for(
    running: RunningBroker, run: Run
) -> None:
    send(running, "Looked", Message("Looked", b"a"))
    code, _, err = run("message", "show", "0" * 32)
    assert (code, "in any of" in err) == (1, True)
    code, _, err = run("message", "show", "0" * 32, "--topic", "Lookd")
    assert (code, "did you mean Looked?" in err) == (1, True)
    assert run("message", "show", "short")[0] == 2


def test_what_only_the_broker_knows_is_shown(
    running: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter of properties decides, and a member has the message and does not say a word."""
    [msg_id] = send(running, "Known", Message("Known", b"a", properties={"size": "7"}))
    release = threading.Event()
    got: list[ReceivedMessage] = []

    def listener(messages: list[ReceivedMessage]) -> None:
        got.extend(messages)
        release.wait(20)

    options = PushOptions(consume_from=ConsumeFrom.FIRST)
    with (
        blocking_roles.PushConsumer(running.name_server, "Hangs", listener, options) as hangs,
        blocking_roles.PushConsumer(running.name_server, "Small", got.append, options) as small,
    ):
        hangs.subscribe("Known", "size > 5", "SQL92")
        small.subscribe("Known", "size < 5", "SQL92")
        until(lambda: bool(got))
        until(lambda: len(states(run, msg_id)) == 2)
        assert states(run, msg_id) == {"Hangs": ("given out", 0), "Small": ("filtered out", 0)}
        assert "size > 5" in run("message", "show", msg_id)[1]
        with foreign(monkeypatch):
            assert states(run, msg_id)["Hangs"] == ("not yet", 0)
        release.set()


@pytest.mark.parametrize(
    ("text", "delays"), [("1s 2m 1h", [1000, 120_000, 3_600_000]), ("1s x", []), ("", [])]
)
def test_delay_levels_of_a_foreign_broker_are_read(text: str, delays: list[int]) -> None:
    assert foreign_places.delays_of(text) == delays


# --- trace ----------------------------------------------------------------------------------------


def test_a_trace_is_printed_as_a_time_line(running: RunningBroker, run: Run) -> None:
    send(running, "Traced", Message("Traced", b"before"))
    got: list[ReceivedMessage] = []
    consumer = blocking_roles.PushConsumer(
        running.name_server,
        "Tracing",
        got.extend,
        PushOptions(consume_from=ConsumeFrom.FIRST, trace=True),
    )
    options = ProducerOptions(trace=True)
    with consumer, blocking_roles.Producer(running.name_server, "TP", options) as producer:
        consumer.subscribe("Traced")
        msg_id = producer.send(Message("Traced", b"a", keys=("key\x1b",))).msg_id
        until(lambda: any(one.msg_id == msg_id for one in got))
    code, out, err = run("message", "trace", msg_id, "--json")
    assert code == 0, err
    events = [(one["event"], one["group"], one["success"]) for one in json.loads(out)]
    assert events == [
        ("sent", "TP", True), ("consuming", "Tracing", None), ("consumed", "Tracing", True),
    ]  # fmt: skip
    code, out, _ = run("message", "trace", msg_id)
    assert (code, len(out.splitlines())) == (0, 4)
    code, _, err = run("message", "trace", "0" * 32)
    assert (code, "enableMsgTrace" in err) == (1, True)


def test_the_trace_topic_is_that_of_the_protocol() -> None:
    assert arguments._TRACE_TOPIC == TRACE_TOPIC


# --- resend ---------------------------------------------------------------------------------------


def test_a_message_is_sent_again_to_all_groups_or_to_one(running: RunningBroker, run: Run) -> None:
    [msg_id] = send(running, "Repeated", Message("Repeated", b"a", tags="red", keys=("k",)))
    give_back(running, "Repeating", "Repeated", 5)
    code, _, err = run("message", "resend", "Repeated", msg_id)
    assert (code, "by Repeated it goes again to Repeating" in err) == (0, True)
    assert len(read(running, "Repeated")) == 1
    assert run("message", "resend", "Repeated", msg_id, "--yes")[0] == 0
    first, copy = read(running, "Repeated")
    assert (copy.msg_id, copy.body, copy.tags) == (msg_id, b"a", "red")
    assert copy.properties[RESENT_FROM] == first.offset_msg_id
    assert "RETRY_TOPIC" not in copy.properties
    assert run("message", "resend", "Repeating", first.offset_msg_id, "--yes")[0] == 0
    [again] = read(running, "%RETRY%Repeating")
    assert (again.msg_id, again.properties["RETRY_TOPIC"]) == (msg_id, "Repeated")
    err = run("message", "resend", "Repeating", first.offset_msg_id)[2]
    assert "was sent it again already" in err


def test_a_name_of_topic_and_group_has_to_be_said(running: RunningBroker, run: Run) -> None:
    [msg_id] = send(running, "Both", Message("Both", b"a"))
    give_back(running, "Both", "Both", 5)
    assert run("message", "resend", "Both", msg_id)[0] == 2
    assert run("message", "resend", "Both", msg_id, "--as", "topic")[0] == 0
    code, _, err = run("message", "resend", "Botj", msg_id)
    assert (code, "did you mean Both?" in err) == (1, True)


# --- skip -----------------------------------------------------------------------------------------


def test_a_stuck_message_becomes_a_dead_letter_and_the_group_goes_on(
    running: RunningBroker, run: Run
) -> None:
    ids = send(running, "Stuck", *(Message("Stuck", b"%d" % number) for number in range(3)))
    commit(running, "Sticking", "Stuck", 1)
    skip = ("message", "skip", "Sticking", "Stuck", "--queue", "0")
    code, out, err = run(*skip)
    assert (code, ids[1] in out, "would go on at 2" in err) == (0, True, True)
    expected = err.strip().rsplit(" ", 1)[1]
    assert committed(running, "Sticking", "Stuck") == 1
    code, _, err = run(*skip, "--yes", "--expect", "000000000000")
    assert (code, "has moved on" in err) == (1, True)
    assert run(*skip, "--yes", "--json", "--expect", expected)[0] == 0
    assert committed(running, "Sticking", "Stuck") == 2
    assert [one.msg_id for one in read(running, "%DLQ%Sticking")] == [ids[1]]
    # It was broken off before the offset was moved: no second letter.
    commit(running, "Sticking", "Stuck", 1)
    assert run(*skip, "--yes")[0] == 0
    assert committed(running, "Sticking", "Stuck") == 2
    assert len(read(running, "%DLQ%Sticking")) == 1
    assert run(*skip, "--yes")[0] == 0
    code, _, err = run(*skip, "--yes")
    assert (code, "nothing to skip" in err) == (1, True)
    assert run(*skip[:-1], "7")[0] == 1


def test_a_group_that_is_online_is_told_to_go_on_behind_the_message(
    running: RunningBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listener hangs on the message, which is the first of a queue in order."""
    ids = send(running, "Held", Message("Held", b"stuck"), Message("Held", b"next"))
    commit(running, "Holding", "Held", 0)
    got: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> None:
        got.extend(one.body for one in messages)
        if messages[0].body == b"stuck":
            # In order it is tried again and again, and nothing behind it comes.
            raise RuntimeError("the listener fails")

    options = PushOptions(
        consume_from=ConsumeFrom.FIRST,
        orderly=True,
        orderly_suspend_ms=50,
        offset_store_interval_s=0.05,
    )
    skip = ("message", "skip", "Holding", "Held", "--queue", "0", "--yes")
    consumer = blocking_roles.PushConsumer(running.name_server, "Holding", listener, options)
    with consumer:
        consumer.subscribe("Held")
        until(lambda: b"stuck" in got)
        with foreign(monkeypatch):
            code, _, err = run(*skip)
            assert (code, "stop the group's members first" in err) == (1, True)
        assert run(*skip)[0] == 0
        until(lambda: b"next" in got)
        until(lambda: committed(running, "Holding", "Held") == 2)
    assert [one.msg_id for one in read(running, "%DLQ%Holding")] == ids[:1]


# --- purge ----------------------------------------------------------------------------------------


def test_a_purge_moves_the_groups_to_the_end(running: RunningBroker, run: Run) -> None:
    send(running, "Full", *(Message("Full", b"%d" % number) for number in range(5)))
    commit(running, "Slow", "Full", 1)
    commit(running, "Fast", "Full", 5)
    code, out, err = run("topic", "purge", "Full", "--json")
    shown = json.loads(out)
    assert (code, shown["messages"], shown["done"]) == (0, 5, False)
    assert [(one["group"], one["not_consumed"]) for one in shown["groups"]] == [
        ("Fast", 0), ("Slow", 4),
    ]  # fmt: skip
    expected = err.strip().rsplit(" ", 1)[1]
    code, _, err = run("topic", "purge", "Full", "--yes", "--expect", "000000000000")
    assert (code, "has moved on" in err) == (1, True)
    assert run("topic", "purge", "Full", "--yes", "--expect", expected)[0] == 0
    assert committed(running, "Slow", "Full") == 5
    assert len(read(running, "Full")) == 5
    assert run("topic", "purge", "%DLQ%Slow")[0] == 2
    assert run("topic", "purge", "Ful")[0] == 1
