"""`aerobee audit` against a running broker and its name server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aerobee import testing
from aerobee.access.audit import audit_requests
from aerobee.cli.main import main
from aerobee.client import blocking_roles
from aerobee.client.errors import PeerError
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.testing import RunningBroker
from tests.ports import free_port

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with testing.broker(broker_name="bee") as broker:
        with blocking_roles.Admin(broker.name_server) as admin:
            admin.create_topic("Orders", queues=2)
            admin.create_topic("Orders", queues=4)
            with pytest.raises(PeerError):
                admin.create_topic("Orders", queues=99_999)
            admin.create_topic("Other", queues=1)
            admin.delete_topic("Orders")
        yield broker


@pytest.fixture
def run(running: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a client command against the broker: (exit code, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "-n", running.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def records(run: Run, *arguments: str) -> list[dict[str, Any]]:
    code, out, err = run("audit", "--json", *arguments)
    assert (code, err) == (0, ""), err
    found: list[dict[str, Any]] = json.loads(out)
    return found


def requests(run: Run, *arguments: str) -> list[str]:
    return [one["request"] for one in records(run, *arguments)]


ALL = [*("topic_update",) * 4, "topic_delete", "name_server_topic_delete"]


def test_changes_of_all_stand_in_their_order(run: Run, running: RunningBroker) -> None:
    found = records(run)
    assert [one["request"] for one in found] == ALL
    assert [one["outcome"] for one in found] == ["done", "done", "refused", *("done",) * 3]
    assert found == sorted(found, key=lambda one: one["timestamp_ms"])
    second, refused, last = found[1], found[2], found[-1]
    assert (second["broker"], second["broker_id"], second["name_server"]) == ("bee", 0, None)
    assert second["before"] == "read=2 write=2 perm=6"
    assert second["after"] == "read=4 write=4 perm=6"
    assert (second["account"], second["why"], second["times"]) == (None, None, 1)
    assert refused["after"] is None
    assert "99999" in refused["why"]
    assert (last["broker"], last["name_server"]) == (None, running.name_server)


def test_people_get_a_table(run: Run) -> None:
    code, out, err = run("audit", "--object", "Orders", "--broker", "bee")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split() == [
        "TIME",
        "AT",
        "REQUEST",
        "OBJECT",
        "ACCOUNT",
        "ADDRESS",
        *head.split()[6:],
    ]
    assert "read=2 write=2 perm=6 -> read=4 write=4 perm=6" in lines[1]
    assert "refused: " in lines[2]
    assert "read=4 write=4 perm=6 -> absent" in lines[3]
    assert len(lines) == 4


def test_arguments_narrow_it_down(run: Run) -> None:
    assert requests(run, "--code", "topic_delete") == ["topic_delete"]
    assert requests(run, "--code", "215", "--code", "topic-update") == ALL[:-1]
    assert requests(run, "--object", "Other") == ["topic_update"]
    assert requests(run, "--broker", "bee") == ALL[:-1]
    assert requests(run, "--since", "1h") == ALL
    between = records(run)[-2]["timestamp_ms"]
    assert requests(run, "--since", str(between)) == ALL[-2:]
    for nobody in (("--account", "somebody"), ("--since", str(int(time.time() * 1000) + 60_000))):
        code, out, err = run("audit", *nobody)
        assert (code, out) == (0, "")
        assert "nobody has changed anything" in err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--code", "topic_delet"), 2, "did you mean topic_delete?"),
        (("--since", "yesterday"), 2, "a time span such as 1h"),
        (("--broker", "be"), 1, "there is no broker be: did you mean bee?"),
    ],
)
def test_what_is_not_known_gets_the_nearest_name(
    run: Run, arguments: tuple[str, ...], code: int, text: str
) -> None:
    found, out, err = run("audit", *arguments)
    assert (found, out) == (code, "")
    assert text in err


def test_a_broker_of_rocketmqs_cannot_tell(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise BadRequest(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 31034 not supported"
        )

    monkeypatch.setattr(audit_requests, "audit_events", unknown)
    code, out, err = run("audit")
    assert (code, out) == (1, "")
    assert err.count("cannot tell: it keeps no audit events") == 2
    assert "bee cannot tell" in err
    assert "name server 127.0.0.1" in err


def test_the_others_are_shown_where_one_is_away(
    run: Run, running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not answer costs one time-out, and the exit code says so."""
    from aerobee.cli.cluster import audit

    peers = audit._peers

    async def with_one_away(*given: Any) -> list[Any]:
        return [*await peers(*given), audit._Peer("away", 1, "127.0.0.1:1")]

    monkeypatch.setattr(audit, "_peers", with_one_away)
    code, out, err = run("audit", "--json")
    assert code == 3
    assert len(json.loads(out)) == len(ALL)
    assert "away (slave 1) did not answer" in err


def test_a_port_of_administrators_tells_what_the_ports_of_clients_refuse(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = f"127.0.0.1:{(port := free_port())}"
    with testing.broker(broker_name="bee", admin_port=port) as broker:
        asking = "audit", "-n", broker.name_server, "--broker", "bee"
        assert main([*asking]) == 1
        assert "audit_events (code 31034) is not taken at this port" in capsys.readouterr().err
        create = "topic", "create", "Orders", "-n", broker.name_server
        assert main([*create]) != 0
        assert main([*create, "--admin", admin]) == 0
        capsys.readouterr()
        assert main([*asking, "--admin", admin, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
    assert [(one["object"], one["outcome"]) for one in found] == [
        *(("Orders", "refused"), ("Orders", "done"))
    ]
