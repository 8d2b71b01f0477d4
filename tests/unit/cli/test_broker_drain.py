"""`aerobee broker drain` against two brokers in the process."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator

import pytest

from aerobee import testing
from aerobee.cli.cluster import drain as drain_command
from aerobee.cli.main import main
from aerobee.client.blocking_roles import Admin
from aerobee.client.errors import CallTimeout
from aerobee.protocol.bodies.drain import DrainStatus
from aerobee.testing import RunningBroker
from tests.ports import free_port

Run = Callable[..., tuple[int, str, str]]
READ, READ_WRITE = 4, 6
SETTINGS = {"drain_route_refresh_ms": 0, "vip_port_enabled": False}


@pytest.fixture(scope="module")
def first() -> Iterator[RunningBroker]:
    """Broker `bee` with its name server; `wasp` is registered there as well. Both have the topic
    Orders, and `bee` alone has OnlyHere."""
    with testing.broker(broker_name="bee", nameserver_port=free_port(), **SETTINGS) as bee:
        settings = {"nameserver_enabled": False, "name_servers": bee.name_server, **SETTINGS}
        with testing.broker(broker_name="wasp", **settings), Admin(bee.name_server) as admin:
            until(lambda: len(admin.cluster().brokers) == 2)
            admin.create_topic("Orders", queues=2)
            admin.create_topic("OnlyHere", queues=2, broker="bee")
            until(lambda: rights(admin, "Orders") == {"bee": READ_WRITE, "wasp": READ_WRITE})
            yield bee


@pytest.fixture
def run(first: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["broker", "drain", *words, "-n", first.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def admin(first: RunningBroker) -> Iterator[Admin]:
    with Admin(first.name_server) as admin:
        yield admin


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def rights(admin: Admin, topic: str) -> dict[str, int]:
    return {one.broker_name: one.perm for one in admin.route(topic).queues}


def test_a_preview_names_what_nobody_else_takes_and_its_last_line_does_it(
    run: Run, admin: Admin
) -> None:
    code, out, err = run("bee")
    assert code == 0
    assert re.search(r"^taken by +wasp$", out, re.MULTILINE)
    assert re.search(r"^taken by nobody else +OnlyHere$", out, re.MULTILINE)
    assert "1 of 2 topics are taken by no other broker" in err
    assert rights(admin, "Orders")["bee"] == READ_WRITE, "nothing was changed"
    words = shlex.split(err.strip().rpartition(": ")[2])
    assert words[:3] == ["aerobee", "broker", "drain"]

    code, out, err = run(*words[3 : words.index("-n")], *words[-3:], "--wait", "--json")
    shown = json.loads(out)
    assert (code, shown["changed"], shown["state"]) == (0, True, "drained")
    assert shown["senders_left"] is True
    until(lambda: rights(admin, "OnlyHere")["bee"] == READ)
    assert rights(admin, "Orders") == {"bee": READ, "wasp": READ_WRITE}

    code, out, err = run("wasp", "--yes", "--expect", words[-1])
    assert code == 1
    assert "has moved on" in err
    code, out, err = run("bee", "--undo")
    assert code == 0
    assert "producers would come back" in err
    assert rights(admin, "Orders")["bee"] == READ
    assert run("bee", "--undo", "--yes")[0] == 0
    until(lambda: rights(admin, "Orders")["bee"] == READ_WRITE)
    until(lambda: rights(admin, "OnlyHere")["bee"] == READ_WRITE)
    assert run("bee", "--undo", "--yes")[0] == 0, "undone already"


def test_a_drain_without_wait_returns_at_once_and_says_so(run: Run, admin: Admin) -> None:
    code, out, err = run("wasp", "--yes")
    assert code == 0
    assert "--wait waits for that" in err
    until(lambda: rights(admin, "Orders")["wasp"] == READ)
    code, out, _ = run("wasp")
    assert re.search(r"^state +drain(ing|ed)$", out, re.MULTILINE)
    assert run("wasp", "--undo", "--yes")[0] == 0
    until(lambda: rights(admin, "Orders")["wasp"] == READ_WRITE)


def test_an_unknown_broker_is_named_with_the_nearest(run: Run) -> None:
    code, _, err = run("bea", "--yes")
    assert (code, err) == (1, "aerobee: there is no broker bea; did you mean bee?\n")


def test_a_broker_that_cannot_tell_is_drained_at_its_name_servers(
    run: Run, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # RocketMQ's brokers answer that they do not know the request.
    monkeypatch.setattr(drain_command, "_ROUTES_READ_S", 0.0)
    monkeypatch.setattr(drain_command, "_QUIET_S", 0.01)

    async def not_known(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(drain_command, "ask_drain", not_known)
    code, out, _ = run("wasp")
    assert code == 0
    assert re.search(r"^state +\? \(this broker cannot tell\)$", out, re.MULTILINE)
    code, out, err = run("wasp", "--yes", "--wait")
    assert code == 0
    assert "topics of wasp may not be written any more" in err
    assert "cannot tell who still sends" in err
    assert re.search(r"^producers have left +yes$", out, re.MULTILINE)
    until(lambda: rights(admin, "Orders") == {"bee": READ_WRITE, "wasp": READ})
    code, _, err = run("wasp", "--undo", "--yes")
    assert "topics of wasp may be written again" in err
    until(lambda: rights(admin, "Orders") == {"bee": READ_WRITE, "wasp": READ_WRITE})


def test_a_name_server_that_does_not_answer_is_named_and_exits_3(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_known(*_: object, **__: object) -> None:
        return None

    async def silent(*_: object, **__: object) -> dict[str, object]:
        return {"10.0.0.1:9876": CallTimeout("no answer in 5 s"), "10.0.0.2:9876": 4}

    monkeypatch.setattr(drain_command, "ask_drain", not_known)
    monkeypatch.setattr(drain_command, "set_write_right", silent)
    code, _, err = run("wasp", "--yes", "--wait")
    assert code == 3
    assert "10.0.0.1:9876: not done: no answer in 5 s" in err
    assert "10.0.0.2:9876: 4 topics of wasp may not be written any more" in err


@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        (DrainStatus(state="serving", reason="no name server answers"), (), 1),
        (DrainStatus(state="drained", reason="its time is over", senders_left=False), (), 0),
        (DrainStatus(state="drained", reason="its time is over", senders_left=False), ("W",), 1),
    ],
    ids=["refused", "not waited for", "time over"],
)
def test_what_the_broker_says_decides_the_exit_code(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    status: DrainStatus,
    words: tuple[str, ...],
    code: int,
) -> None:
    async def scripted(*_: object, **__: object) -> DrainStatus:
        return status

    monkeypatch.setattr(drain_command, "ask_drain", scripted)
    found, out, err = run("wasp", "--yes", *(["--wait"] if words else []))
    assert found == code
    assert status.reason in out + err
