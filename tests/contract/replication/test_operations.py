"""A master and its slave as people see them: metrics, readiness, GET_BROKER_HA_STATUS, and
`aerobee broker ha`."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aerobee import testing
from aerobee.cli.main import main
from aerobee.protocol.bodies.ha_status import HaStatus
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire
from tests.ports import free_port

WAIT_S = 20.0


@contextmanager
def master(**settings: Any) -> Iterator[RunningBroker]:
    own: dict[str, Any] = {"broker_role": "SYNC_MASTER", "nameserver_port": free_port()}
    with _broker(**{**own, **settings}) as running:
        yield running


@contextmanager
def slave(of: RunningBroker, **settings: Any) -> Iterator[RunningBroker]:
    own: dict[str, Any] = {"broker_role": "SLAVE", "broker_id": 1, "name_servers": of.name_server}
    with _broker(**{**own, **settings}) as running:
        yield running


@contextmanager
def _broker(**settings: Any) -> Iterator[RunningBroker]:
    ports = {"ha_listen_port": free_port(), "http_enabled": True, "http_port": free_port()}
    with testing.broker(**{**ports, **settings}) as running:
        yield running


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RunningBroker, RunningBroker]]:
    with master() as first, slave(first) as second:
        until(lambda: value(first, "aerobee_slaves_near") == 1)
        yield first, second


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def get(broker: RunningBroker, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def series(broker: RunningBroker, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name, by the values of their labels."""
    _, page = get(broker, "/metrics")
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


def value(broker: RunningBroker, name: str, *labels: str) -> float | None:
    return series(broker, name).get(labels)


def note(broker: RunningBroker, name: str) -> dict[str, Any]:
    status, body = get(broker, "/ready")
    assert status == 200
    found = [one for one in json.loads(body)["checks"] if one["check"] == name]
    assert len(found) == 1
    assert found[0]["note"]
    note: dict[str, Any] = found[0]
    return note


async def test_metrics_tell_of_slaves_at_the_master_and_of_the_master_at_a_slave(
    pair: tuple[RunningBroker, RunningBroker],
) -> None:
    first, second = pair
    wire = await Wire.to(first.broker)
    assert (await wire.send("Counted", b"x" * 3000)).code == ResponseCode.SUCCESS
    wire.caller.close()
    mark = "aerobee_store_mark_bytes"
    written = value(first, mark, "written")
    assert written is not None
    assert written > 3000
    until(lambda: value(second, mark, "written") == written)
    until(lambda: value(first, mark, "replicated") == written)
    assert series(first, "aerobee_role") == {("master",): 1, ("slave",): 0}
    assert series(second, "aerobee_role") == {("master",): 0, ("slave",): 1}
    counts = [value(first, f"aerobee_slaves{end}") for end in ("", "_near", "_promised")]
    assert counts == [1, 1, 1]
    until(lambda: value(first, "aerobee_slave_lag_bytes", "127.0.0.1") == 0)
    assert value(first, "aerobee_slave_lag_seconds", "127.0.0.1") == 0
    assert value(first, "aerobee_slave_state", "127.0.0.1", "level") == 1
    assert value(first, "aerobee_slave_state", "127.0.0.1", "cold") == 0
    # Byte 0 is there before it is sent.
    for name in ("aerobee_slaves_sent_bytes_total",):
        assert value(first, name) in (written, written - 1)
    assert value(first, "aerobee_slave_sent_bytes_total", "127.0.0.1") in (written, written - 1)
    refusals = series(first, "aerobee_slave_refusals_total")
    assert set(refusals) == {
        (reason,)
        for reason in (
            *("above", "back", "below", "crowded", "no_master", "no_slave", "unsent", "untrusted"),
        )
    }
    states = series(second, "aerobee_master_link_state")
    assert [state for (state,), at in states.items() if at] == ["taking"]
    assert value(second, "aerobee_master_connections_total") == 1
    received = value(second, "aerobee_master_received_bytes_total")
    assert received is not None
    assert received > written
    assert value(second, "aerobee_master_unwritten_bytes") == 0
    ago = value(second, "aerobee_master_heard_ago_seconds")
    assert ago is not None
    assert 0 <= ago < WAIT_S
    assert value(second, "aerobee_master_gaps_total") == 0
    until(lambda: value(second, "aerobee_master_oldest_bytes") == 0)
    # A master has no master, and this slave no slaves.
    assert series(first, "aerobee_master_link_state") == {}
    assert series(second, "aerobee_slave_lag_bytes") == {}


def test_readiness_of_a_pair_has_the_notes_of_each_role_and_nothing_to_say(
    pair: tuple[RunningBroker, RunningBroker],
) -> None:
    of_slaves = {"follows its master", "has its master's old messages"}
    of_replication = {"slaves are served", "copies are there"} | of_slaves
    of_roles = ({"slaves are served", "copies are there"}, of_slaves)
    for broker, expected in zip(pair, of_roles, strict=True):
        _, body = get(broker, "/ready")
        shown = {one["check"] for one in json.loads(body)["checks"]}
        assert shown & of_replication == expected
        for name in expected:
            assert note(broker, name)["ok"], (broker, name)


def test_a_master_that_promises_no_copies_has_no_note_about_them() -> None:
    with master(broker_role="ASYNC_MASTER", ha_enabled=True) as alone:
        _, body = get(alone, "/ready")
        shown = {one["check"] for one in json.loads(body)["checks"]}
        assert "slaves are served" in shown
        assert "copies are there" not in shown


async def test_master_and_slave_tell_tools_of_each_other(
    pair: tuple[RunningBroker, RunningBroker],
) -> None:
    first, _ = pair
    end = value(first, "aerobee_store_mark_bytes", "written")
    until(lambda: value(first, "aerobee_store_mark_bytes", "replicated") == end)
    found = []
    for broker in pair:
        wire = await Wire.to(broker.broker)
        answer = await wire.call(RequestCode.GET_BROKER_HA_STATUS)
        wire.caller.close()
        assert answer.code == ResponseCode.SUCCESS
        found.append(HaStatus.parse(answer.body))
    of_master, of_slave = found
    assert of_master.is_master
    assert of_master.end == end
    (seen,) = of_master.slaves
    assert (seen.acknowledged, seen.sent_from, seen.behind, seen.in_sync) == (end, end, 0, True)
    assert seen.address.startswith("127.0.0.1:")
    assert of_slave.master is not None
    assert of_slave.master.is_connected
    assert of_slave.master.address == f"127.0.0.1:{first.settings.ha_listen_port}"
    assert of_slave.master.end == end
    assert abs(of_slave.master.heard_ms / 1000 - time.time()) < WAIT_S
    assert abs(of_slave.master.told_ms / 1000 - time.time()) < WAIT_S


def test_the_command_shows_the_pair(
    pair: tuple[RunningBroker, RunningBroker], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = pair
    end = value(first, "aerobee_store_mark_bytes", "written")
    assert main(["broker", "ha", "-n", first.name_server, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["brokers"]
    assert rows == [
        {
            "broker": "test-broker", "id": 0, "role": "master", "address": first.broker,
            "end": end, "acknowledged": None, "lag": None,
            "state": "1 of 1 slaves near enough; answers wait for 1", "reason": None,
        },
        {
            "broker": "test-broker", "id": 1, "role": "slave", "address": second.broker,
            "end": end, "acknowledged": end, "lag": 0, "state": "level",
            "reason": None,
        },
    ]  # fmt: skip
    assert main(["broker", "ha", "-n", first.name_server]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == [
        *("BROKER", "ID", "ROLE", "ADDRESS", "END", "ACKNOWLEDGED", "LAG", "STATE")
    ]
    assert len(table) >= 3
    assert main(["broker", "ha", "-n", first.name_server, "--broker", "nobody"]) == 1
    assert "there is no broker nobody: there is test-broker" in capsys.readouterr().err


async def test_a_sync_master_without_its_slave_says_so_and_stays_ready() -> None:
    with master() as alone:
        found = note(alone, "copies are there")
        assert not found["ok"]
        assert found["reason"].startswith("0 of the 1 slaves")
        assert "start the slave" in found["what_to_do"]
        wire = await Wire.to(alone.broker)
        sent = await wire.send("Alone", b"x")
        status = HaStatus.parse((await wire.call(RequestCode.GET_BROKER_HA_STATUS)).body)
        wire.caller.close()
        assert sent.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert (status.is_master, status.slaves) == (True, ())


def test_a_refused_slave_is_noted_on_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    with master(ha_slave_addresses="10.1.2.3") as guarded, slave(guarded) as stranger:
        until(lambda: not note(guarded, "slaves are served")["ok"])
        assert "slave 127.0.0.1: it is not admitted" in note(guarded, "slaves are served")["reason"]
        assert value(guarded, "aerobee_slave_refusals_total", "untrusted") != 0
        until(lambda: not note(stranger, "follows its master")["ok"])
        until(lambda: "haSlaveAddresses" in note(stranger, "follows its master").get("reason", ""))
        assert value(guarded, "aerobee_slaves") == 0
        assert main(["broker", "ha", "-n", guarded.name_server]) == 0
        said = capsys.readouterr().err
        assert f"master {guarded.broker} of test-broker: slave 127.0.0.1 was refused: " in said
        assert f"slave {stranger.broker} of test-broker: the master has closed" in said


def test_two_slaves_of_one_address_are_one_copy_wherever_copies_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with master(in_sync_replicas=3) as first, slave(first), slave(first, broker_id=2):
        until(lambda: value(first, "aerobee_slaves") == 2)
        until(lambda: value(first, "aerobee_slaves_near") == 1)
        reason = note(first, "copies are there")["reason"]
        assert reason.startswith("1 of the 2 slaves")
        assert "2 connections come from 1 address, and those of one address count" in reason
        assert main(["broker", "ha", "-n", first.name_server, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["brokers"]
        assert rows[0]["state"].startswith("2 of 2 slaves near enough, together 1 copy: ")


async def test_a_slave_that_is_ahead_shows_that_and_why_it_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = {"store_path": str(tmp_path / "store")}
    with master(broker_role="ASYNC_MASTER", ha_enabled=True, **store) as before:
        wire = await Wire.to(before.broker)
        assert (await wire.send("Ahead", b"x" * 3000)).code == ResponseCode.SUCCESS
        wire.caller.close()
    with master() as first, slave(first, **store) as second:
        until(lambda: "has messages that" in note(second, "follows its master").get("reason", ""))
        command = ["broker", "ha", "-n", first.name_server, "--json"]
        assert await asyncio.to_thread(main, command) == 0
        _, row = json.loads(capsys.readouterr().out)["brokers"]
        assert (row["role"], row["lag"]) == ("slave", None)
        assert row["state"].endswith(" bytes ahead of its master")
        assert "the slave has messages that the master has not" in row["reason"]


async def test_a_broker_without_replication_has_the_families_and_no_series() -> None:
    with testing.broker(http_enabled=True, http_port=free_port()) as plain:
        _, page = get(plain, "/metrics")
        _, ready = get(plain, "/ready")
        wire = await Wire.to(plain.broker)
        status = HaStatus.parse((await wire.call(RequestCode.GET_BROKER_HA_STATUS)).body)
        wire.caller.close()
    assert status.is_master
    assert status.slaves == ()
    families = {one.name: one.samples for one in text_string_to_metric_families(page)}
    for name in ("slaves", "slave_lag_bytes", "slave_state", "master_link_state", "master_gaps"):
        assert families[f"aerobee_{name}"] == []
    assert [one.labels["role"] for one in families["aerobee_role"] if one.value] == ["master"]
    assert "copies are there" not in ready


def test_a_slave_that_stops_in_order_leaves_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with master() as first:
        with slave(first):
            until(lambda: value(first, "aerobee_slaves") == 1)
        until(lambda: value(first, "aerobee_slaves") == 0)
        assert main(["broker", "ha", "-n", first.name_server, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["brokers"]
        text = "no slaves; answers wait for 1: 1 missing, so sends get SLAVE_NOT_AVAILABLE"
        assert [(row["role"], row["state"]) for row in rows] == [("master", text)]
        assert value(first, "aerobee_slaves_near") == 0
        assert value(first, "aerobee_slaves_promised") == 1


async def test_groups_are_read_from_a_slave_while_the_master_is_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def run(*command: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*command, "-n", names.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    with testing.broker(broker_name="names", nameserver_port=free_port()) as names:
        own = {"broker_name": "pair", "name_servers": names.name_server, "ha_enabled": True}
        with ExitStack() as slaves:
            with master(**own, broker_role="ASYNC_MASTER") as first:
                second = slaves.enter_context(slave(names, **own))
                wire = await Wire.to(first.broker)
                group = json.dumps({"groupName": "CG"}).encode()
                await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
                sent = await wire.send("Orders", b"x")
                where = {"consumerGroup": "CG", "topic": "Orders", "queueId": 0, "commitOffset": 1}
                committed = await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, where)
                wire.caller.close()
                assert (sent.code, committed.code) == (0, 0)
                code, out, said = await run("offset", "show", "CG", "--json")
                assert (code, said) == (0, "")
                before = json.loads(out)
                async with asyncio.timeout(WAIT_S):
                    while await _offset_at(second.broker) != 1:  # noqa: ASYNC110 - a broker's
                        await asyncio.sleep(0.02)
            for command in (
                ("offset", "show", "CG"),
                ("offset", "show", "CG", "--topic", "Orders"),
            ):
                code, out, said = await run(*command, "--json")
                assert (code, json.loads(out)) == (0, before)
                assert "no master of pair is registered: a slave was asked" in said
            code, out, said = await run("group", "list", "--json")
            assert code == 0
            assert [(one["group"], one["brokers"]) for one in json.loads(out)] == [("CG", ["pair"])]
            assert len(said.splitlines()) == 1
            assert "no master of pair is registered" in said
            assert (await run("group", "describe", "CG"))[0] == 0
            # Nothing is changed at a slave.
            code, _, said = await run(
                "offset", "reset", "CG", "Orders", "--to", "earliest", "--yes"
            )
            assert code == 1
            assert "no master of pair is registered, so nothing was changed" in said
            for command in (
                ("offset", "clone", "CG", "CX"),
                ("topic", "delete", "Orders", "--yes"),
                ("topic", "delete", "Orders"),
                ("topic", "create", "Orders2"),
                ("broker", "config", "--set", "deleteWhen=05"),
            ):
                code, _, said = await run(*command)
                assert (code, "no master of pair is registered, so nothing" in said) == (1, True)
            address = ("--address", second.broker)
            code, out, _ = await run("broker", "config", "brokerRole", *address, "--json")
            assert (code, json.loads(out)) == (0, {second.broker: {"brokerRole": "SLAVE"}})
            assert await _offset_at(second.broker) == 1


async def _offset_at(address: str) -> int | None:
    """The offset of the group there."""
    wire = await Wire.to(address)
    where = {"consumerGroup": "CG", "topic": "Orders", "queueId": 0}
    answer = await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, where)
    wire.caller.close()
    return int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else None
