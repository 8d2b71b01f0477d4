"""`status`, `client`, `topic explain` and `broker permission` against a real broker, and against a
broker that answers as RocketMQ's; and the cost of a peer that never answers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from aerobee import testing
from aerobee.cli.main import main
from aerobee.client import blocking_roles
from aerobee.client.errors import ClientError
from aerobee.client.message import ReceivedMessage
from aerobee.client.options import ConsumeFrom, PushOptions
from aerobee.protocol.bodies.common import encode_kv_table
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.testing import RunningBroker
from tests.ports import free_port
from tests.unit.cli.peers_support import answering_peer, registered, silent_peer

Run = Callable[..., tuple[int, str, str]]
WAIT_S = 10.0
#: The time for an answer here. A command takes it once, with something for itself.
TIMEOUT_S = 0.6
ONCE_S = 1.15
OK, NOT_THERE = int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with testing.broker(broker_name="bee") as broker:
        yield broker


@pytest.fixture
def run(running: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a client command against the broker: (exit code, standard output, standard error)."""

    def run(*arguments: str, servers: str = "") -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "-n", servers or running.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def shown(run: Run) -> Callable[..., Any]:
    """The document of a command that succeeds."""

    def shown(*arguments: str) -> Any:
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return shown


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- status


def test_status_tells_how_a_broker_is(shown: Callable[..., Any], running: RunningBroker) -> None:
    (bee,) = shown("status")["brokers"]
    assert (bee["broker"], bee["broker_id"], bee["role"]) == ("bee", 0, "master")
    assert (bee["address"], bee["rights"], bee["ready"]) == (running.broker, "rw", True)
    assert bee["connections"] >= 1
    assert 0 < bee["disk_used_ratio"] < 1
    assert bee["disk_room_bytes"] > 0
    assert bee["name_servers"] == [
        {"name_server": running.name_server, "registered": True, "reason": None}
    ]
    limits = {one["limit"]: one for one in bee["limits"]}
    assert limits["limits.max_topics"]["value"] >= 1
    assert limits["limits.connections"]["bound"] > 100


def test_refusals_are_told_with_cause_codes_and_peer(
    run: Run, shown: Callable[..., Any], running: RunningBroker
) -> None:
    with blocking_roles.Admin(running.name_server) as admin:
        for _ in range(3):
            with pytest.raises(ClientError):
                admin.ask(running.broker, Code.GET_MAX_OFFSET, {"topic": "nope", "queueId": "x"})
    (bee,) = shown("status")["brokers"]
    (found,) = [one for one in bee["refusals"] if one["request"] == "get_max_offset"]
    assert (found["times"], found["peer"], found["answer"]) == (3, "127.0.0.1", "SYSTEM_ERROR")
    assert "queueId" in found["cause"]
    assert abs(found["last_timestamp_ms"] / 1000 - time.time()) < 60
    out = run("status")[1]
    assert "refusals of the last hour:" in out
    assert "get_max_offset" in out


def test_an_unknown_broker_gets_the_nearest_name(run: Run) -> None:
    assert run("status", "--broker", "bea") == (
        1,
        "",
        "aerobee: there is no broker bea; did you mean bee?\n",
    )


JAVA = {
    int(Code.GET_BROKER_RUNTIME_INFO): (
        OK,
        encode_kv_table(
            {
                "brokerVersionDesc": "V4_9_8",
                "bootTimestamp": "1700000000000",
                "putTps": "1.0 2.5 3.0",
                "getTransferedTps": "5.5  ",
                "commitLogDiskRatio": "0.42",
            }
        ),
    ),
    int(Code.GET_BROKER_CONFIG): (
        OK,
        b"brokerName=java\nbrokerPermission=4\nautoCreateTopicEnable=false\n",
    ),
    int(Code.GET_CONSUMER_CONNECTION_LIST): (
        OK,
        b'{"connectionSet":[{"clientAddr":"10.0.0.9:4000","clientId":"c1","language":"JAVA",'
        b'"version":399}],"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionTable":{}}',
    ),
    int(Code.GET_PRODUCER_CONNECTION_LIST): (NOT_THERE, b""),
    int(Code.GET_ALL_TOPIC_CONFIG): (
        OK,
        b'{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{}}',
    ),
}


def test_a_broker_of_rocketmq_tells_a_part_and_a_line_says_so(
    run: Run, shown: Callable[..., Any], running: RunningBroker
) -> None:
    with answering_peer(JAVA) as address, registered(running.name_server, "java", address):
        (java,) = [one for one in shown("status")["brokers"] if one["broker"] == "java"]
        assert (java["version"], java["rights"]) == ("V4_9_8", "r")
        assert (java["messages_in_per_s"], java["messages_out_per_s"]) == (2.5, 5.5)
        assert java["disk_used_ratio"] == 0.42
        assert (java["ready"], java["disk_full_in_s"], java["connections"]) == (None, None, None)
        assert java["tells_no_more"] == "RocketMQ's brokers do not tell"
        code, out, err = run("status", "--broker", "java")
        assert code == 0
        assert "?" in out
        assert "the rest is not known, RocketMQ's brokers do not tell" in err


def test_a_port_for_administrators_tells_all_and_that_of_clients_a_part(
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    with testing.broker(broker_name="bee", admin_port=port) as broker:
        command = ["status", "--json", "-n", broker.name_server]
        assert main(command) == 0
        (part,) = json.loads(capsys.readouterr().out)["brokers"]
        assert main([*command, "--admin", f"127.0.0.1:{port}"]) == 0
        (whole,) = json.loads(capsys.readouterr().out)["brokers"]
    assert (part["ready"], part["role"]) == (None, "master")
    assert "it tells administrators alone" in part["tells_no_more"]
    assert (whole["ready"], whole["tells_no_more"]) == (True, None)


# --- clients


@pytest.fixture
def consumer(running: RunningBroker, run: Run) -> Iterator[blocking_roles.PushConsumer]:
    run("topic", "create", "held", "--queues", "2")
    options = PushOptions(consume_from=ConsumeFrom.FIRST, orderly=True)

    def listen(_messages: list[ReceivedMessage]) -> None:
        pass

    with blocking_roles.PushConsumer(running.name_server, "holders", listen, options) as consumer:
        consumer.subscribe("held")
        yield consumer


def test_clients_are_listed_with_what_they_hold(
    run: Run, shown: Callable[..., Any], consumer: blocking_roles.PushConsumer
) -> None:
    def held() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = shown("client", "show", consumer.client_id)["queues"]
        return [one for one in found if one["topic"] == "held"]

    wait_for(lambda: len(held()) == 4)
    assert {(one["queue"], one["kind"]) for one in held()} == {
        (queue, kind) for queue in (0, 1) for kind in ("lock", "pull")
    }
    (client,) = shown("client", "list", "--group", "holders")["clients"]
    assert client["client_id"] == consumer.client_id
    assert (client["language"], client["consumer_groups"]) == ("PYTHON", ["holders"])
    assert client["producer_groups"] == []
    assert client["held_pulls"] >= 2
    now_ms = time.time() * 1000
    assert now_ms - 60_000 < client["connected_timestamp_ms"] <= now_ms + 1000
    host = client["address"].rpartition(":")[0]

    def addresses(*options: str) -> list[str]:
        return [one["address"] for one in shown("client", "list", *options)["clients"]]

    for option, some, none in (
        ("--topic", "held", "other"),
        ("--group", "holders", "others"),
        ("--address", host, "192.0.2.1"),
        ("--address", client["address"], f"{host}:1"),
    ):
        assert client["address"] in addresses(option, some)
        assert client["address"] not in addresses(option, none)
    everybody = shown("client", "list", "--all")["clients"]
    assert any(not one["client_id"] for one in everybody), "this very command's connection"
    described = shown("client", "show", consumer.client_id, "--stack")
    assert {"group": "holders", "topic": "held", "subscription": "*"} in described["subscriptions"]
    assert "aerobee-client" in described["stack"]
    code, _, err = run("client", "show", consumer.client_id[:-1])
    assert (code, consumer.client_id in err) == (1, True)
    out = run("client", "list")[1]
    assert consumer.client_id in out


def test_brokers_of_rocketmq_tell_the_members_of_a_group_that_is_named(
    run: Run, running: RunningBroker
) -> None:
    with answering_peer(JAVA) as address, registered(running.name_server, "java", address):
        code, out, err = run("client", "list", "--group", "g", "--json")
        assert code == 0
        (client,) = json.loads(out)["clients"]
        assert (client["client_id"], client["broker"]) == ("c1", "java")
        assert (client["consumer_groups"], client["held_pulls"]) == (["g"], None)
        code, _, err = run("client", "list")
        assert code == 0
        assert "java at" in err
        assert "--group NAME" in err


# --- topic explain


def test_a_topic_that_is_fine_has_no_findings(run: Run, shown: Callable[..., Any]) -> None:
    run("topic", "create", "fine")
    found = shown("topic", "explain", "fine")
    assert (found["sent_on"], found["read_on"], found["findings"]) == (["bee"], ["bee"], [])


def test_a_topic_without_a_route_gets_the_nearest_name_and_how_it_is_made(run: Run) -> None:
    run("topic", "create", "invoices")
    code, out, _ = run("topic", "explain", "invoice", "--json")
    words = {one["finding"]: one for one in json.loads(out)["findings"]}
    assert code == 1
    assert "invoices" in words["another_name"]["cause"]
    assert words["not_made_yet"]["where"] == "bee"
    assert run("topic", "explain", "no such topic")[0] == 2


def test_the_right_that_lacks_is_found_where_it_was_taken(run: Run) -> None:
    run("topic", "create", "closed", "--perm", "r")
    code, out, _ = run("topic", "explain", "closed", "--json")
    (finding,) = json.loads(out)["findings"]
    assert (code, finding["finding"]) == (1, "topic_without_write")
    assert "topic create closed --update --perm rw" in finding["remedy"]


# --- broker permission


def test_a_permission_is_changed_as_the_preview_says(run: Run, running: RunningBroker) -> None:
    settings = {"brokerName": "java", "brokerPermission": "6"}

    def tell(_command: Command) -> tuple[int, bytes]:
        return OK, "".join(f"{key}={value}\n" for key, value in settings.items()).encode()

    def take(command: Command) -> tuple[int, bytes]:
        key, _, value = command.body.decode().strip().partition("=")
        settings[key] = value
        return OK, b""

    knows = {**JAVA, int(Code.GET_BROKER_CONFIG): tell, int(Code.UPDATE_BROKER_CONFIG): take}
    topics = {"shut": 4}
    with ExitStack() as stack:
        address = stack.enter_context(answering_peer(knows))
        stack.enter_context(registered(running.name_server, "java", address, topics))
        assert run("broker", "permission", "java")[1] == "java allows rw\n"
        code, out, err = run("broker", "permission", "java", "--write", "no")
        assert (code, out) == (0, "java would allow r; before: rw\n")
        assert settings["brokerPermission"] == "6"
        command = err.splitlines()[-1].partition("this does it: aerobee ")[2].split()
        assert command[-3:-1] == ["--yes", "--expect"]
        command = [*command[:5], *command[-3:]]
        assert run(*command) == (0, "java allows now r; before: rw\n", "")
        assert settings["brokerPermission"] == "4"
        code, _, err = run(*command)
        assert (code, "has moved on" in err) == (1, True)
        out = run("topic", "explain", "shut", "--json")[1]
        (finding,) = json.loads(out)["findings"]
        assert finding["finding"] == "broker_without_write"
        assert finding["remedy"] == "aerobee broker permission java --write yes"
        assert run("broker", "permission", "java", "--read", "yes")[1] == "java allows r already\n"
    code, _, err = run("broker", "permission", "bea", "--read", "no")
    assert (code, err) == (1, "aerobee: there is no broker bea; did you mean bee?\n")


# --- peers that never answer


LISTINGS = [
    ("topic", "list"),
    ("group", "list"),
    ("status",),
    ("client", "list", "--all"),
    ("broker", "ha"),
    ("topic", "explain", "shown"),
    ("topic", "explain", "bees"),
]


@pytest.mark.parametrize("command", LISTINGS, ids=" ".join)
def test_silent_peers_cost_one_time_out_and_are_named(
    command: tuple[str, ...], run: Run, running: RunningBroker
) -> None:
    """A name server of three, and two brokers, accept and never answer."""
    run("topic", "create", "shown")
    with ExitStack() as stack:
        silent_server = stack.enter_context(silent_peer())
        refusing = "127.0.0.1:1"
        deaf = [stack.enter_context(silent_peer()) for _ in range(2)]
        for number, address in enumerate(deaf):
            stack.enter_context(registered(running.name_server, f"deaf-{number}", address))
        servers = ";".join((silent_server, refusing, running.name_server))
        began = time.monotonic()
        code, out, err = run(*command, "--timeout", str(TIMEOUT_S), servers=servers)
        took_s = time.monotonic() - began
    assert took_s < ONCE_S, f"{took_s:.2f} s: more than one time-out"
    assert code == 3
    assert "bee" in out, "the rest is shown"
    assert silent_server in err
    if command != ("topic", "list"):
        # Topics are name servers' to tell.
        for address in deaf:
            assert address in err


def test_without_any_name_server_a_command_takes_one_time_out(run: Run) -> None:
    with silent_peer() as one, silent_peer() as other:
        for command in LISTINGS:
            began = time.monotonic()
            code, out, _ = run(*command, "--timeout", "0.2", servers=f"{one};{other}")
            assert (code, out) == (3, "")
            assert time.monotonic() - began < 0.6


# --- many topics, and again and again


def test_many_topics_are_listed_without_a_request_for_each(
    run: Run, running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second broker has them: its table tells them all."""
    topics = {f"many-{number}": 6 if number % 2 else 4 for number in range(600)}
    table = {
        name: {"topicName": name, "readQueueNums": 3, "writeQueueNums": 2, "perm": perm}
        for name, perm in topics.items()
    }
    body = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    tells = {**JAVA, int(Code.GET_ALL_TOPIC_CONFIG): (OK, json.dumps(body).encode())}
    tells[int(Code.GET_BROKER_CONFIG)] = OK, b"brokerPermission=6\n"
    routes = []
    from aerobee.client.connections.routes import RouteCache

    route = RouteCache.route
    monkeypatch.setattr(
        RouteCache,
        "route",
        lambda cache, topic, **options: routes.append(topic) or route(cache, topic, **options),
    )
    with ExitStack() as stack:
        address = stack.enter_context(answering_peer(tells))
        stack.enter_context(registered(running.name_server, "java", address, topics))
        found = json.loads(run("topic", "list", "--json")[1])
    by_name = {one["topic"]: one["brokers"] for one in found}
    assert by_name["many-7"] == [
        {"broker": "java", "read_queues": 3, "write_queues": 2, "rights": "rw"}
    ]
    assert by_name["many-8"][0]["rights"] == "r"
    assert len([name for name in by_name if name.startswith("many-")]) == 600
    assert routes == []


def test_ctrl_c_ends_a_watched_command_in_order(running: RunningBroker) -> None:
    words = "status", "--watch", "0.1", "-n", running.name_server
    command = [sys.executable, "-m", "aerobee.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = iter(process.stdout)
        while next(shown).strip():
            pass  # an empty line stands between two blocks
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


def test_a_watched_command_shows_a_block_each_time_until_it_is_interrupted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from aerobee.cli.printing import watch

    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(watch.asyncio, "sleep", sleep)
    for command in (("status",), ("group", "list"), ("client", "list"), ("broker", "ha")):
        pauses.clear()
        code, out, _ = run(*command, "--watch", "7", "--json")
        assert (code, pauses) == (0, [7.0, 7.0, 7.0])
        blocks = out.split("\n\n")
        assert len(blocks) == 3
        for block in blocks:
            json.loads(block)
            assert block.strip().count("\n") == 0, "one document a line"
