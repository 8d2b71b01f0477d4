"""Topic and message commands against a real broker in the process."""

import argparse
import asyncio
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.cli.arguments import argument_types
from aerobee.cli.arguments.parser import Parser, build_parser
from aerobee.cli.main import COMMANDS, main
from aerobee.cli.printing import output
from aerobee.cli.printing.times import exact_time, parse_time
from aerobee.client import message
from aerobee.client.admin import Admin
from aerobee.config.model import BY_NAME
from aerobee.nameserver.server import NameServer
from aerobee.testing import RunningBroker
from tests.ports import free_port


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with testing.broker(broker_name="bee") as broker:
        yield broker


Run = Callable[..., tuple[int, str, str]]


def commands_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The commands that the leaves of a parser set."""
    assert isinstance(parser, Parser)
    parser.declare()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for leaf in action.choices.values():
                yield from commands_of(leaf)
    if command := parser.get_default("command"):
        yield command


def test_every_command_of_the_parser_is_a_function() -> None:
    assert {*commands_of(build_parser())} == COMMANDS.keys()
    for module, name in COMMANDS.values():
        assert callable(getattr(importlib.import_module(f"aerobee.cli.{module}"), name))


def parsers_of(parser: argparse.ArgumentParser) -> Iterator[Parser]:
    """The parsers of the commands below a parser."""
    assert isinstance(parser, Parser)
    parser.declare()
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for below in group.choices.values():
            yield from parsers_of(below)


def test_the_help_of_asking_commands_has_the_connection_in_a_group() -> None:
    asking = 0
    for parser in parsers_of(build_parser()):
        if "--context" not in parser._option_string_actions:
            continue
        asking += 1
        [group] = [one for one in parser._action_groups if one.title == "connection options"]
        words = {word for one in group._group_actions for word in one.option_strings}
        assert {"-n", "--context", "--timeout", "--credentials", "--tls"} <= words
        others = {
            "--admin",
            "--trust-store",
            "--certificate",
        } & parser._option_string_actions.keys()
        assert others <= words
    assert asking > 20


@pytest.fixture
def run(running: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a client command against the broker: (exit code, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "-n", running.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_created_topic_is_listed_and_described(run: Run) -> None:
    assert run("topic", "create", "made", "--queues", "3")[0] == 0
    code, out, _ = run("topic", "list", "--json")
    assert code == 0
    made = {item["topic"]: item["brokers"] for item in json.loads(out)}["made"]
    assert made == [{"broker": "bee", "read_queues": 3, "write_queues": 3, "rights": "rw"}]
    code, out, _ = run("topic", "describe", "made", "--json")
    assert code == 0
    assert [queue["queue"] for queue in json.loads(out)["queues"]] == [0, 1, 2]


def test_system_topics_are_listed_only_when_asked_for(run: Run) -> None:
    run("topic", "create", "mine")
    plain, everything = run("topic", "list")[1], run("topic", "list", "--all")[1]
    assert "mine" in plain
    assert "TBW102" not in plain
    assert "TBW102" in everything


def test_what_was_sent_is_pulled_and_found(run: Run) -> None:
    sent = run(
        *("message", "send", "orders", "one coffee", "--tags", "hot", "--keys", "k1"),
        *("--keys", "k2", "--property", "table=7", "--json"),
    )
    assert sent[0] == 0
    result = json.loads(sent[1])
    assert (result["status"], result["broker"], result["offset"]) == ("OK", "bee", 0)

    pulled = lines(run("message", "pull", "orders", "--json")[1])
    assert [message["body"] for message in pulled] == ["one coffee"]
    assert pulled[0]["keys"] == ["k1", "k2"]
    assert pulled[0]["properties"]["table"] == "7"  # type: ignore[index]

    for query in (
        ("orders", "--key", "k2"),
        ("orders", "--id", result["msg_id"]),
        ("orders", "--id", result["offset_msg_id"]),
        ("--id", result["offset_msg_id"]),
    ):
        code, out, _ = run("message", "query", *query, "--json")
        assert code == 0
        assert [message["msg_id"] for message in lines(out)] == [result["msg_id"]]


def test_a_delayed_message_is_not_there_at_once_and_arrives(run: Run) -> None:
    assert run("message", "send", "delayed", "in two hours", "--delay-level", "18")[0] == 0
    assert run("message", "send", "delayed", "in a second", "--delay-level", "1")[0] == 0
    out = run("message", "tail", "delayed", "--from", "earliest", "--count", "1", "--json")[1]
    (message,) = lines(out)
    assert message["body"] == "in a second"
    assert [m["body"] for m in lines(run("message", "pull", "delayed", "--json")[1])] == [
        "in a second"
    ]


def test_a_message_with_a_time_arrives_then_and_a_cancelled_one_does_not(run: Run) -> None:
    assert run("message", "send", "Timed", "soon", "--delay", "2s")[0] == 0
    (sent,) = lines(run("message", "send", "Timed", "never", "--delay", "1.9", "--json")[1])
    code, out, _ = run("message", "cancel", "Timed", sent["recall_handle"], "--json")
    assert (code, json.loads(out)["msg_id"]) == (0, sent["msg_id"])
    out = run("message", "tail", "Timed", "--from", "earliest", "--count", "1", "--json")[1]
    (message,) = lines(out)
    assert message["body"] == "soon"
    assert len(lines(run("message", "pull", "Timed", "--json")[1])) == 1


def test_a_message_is_cancelled_by_its_id_and_time(run: Run) -> None:
    at = str(time.time_ns() // 1_000_000 + 3_600_000)
    said = run("message", "send", "ById", "never", "--deliver-at", at)[2]
    [unique_id] = re.findall(r"recall handle of (\w+):", said)
    code, _, said = run("message", "cancel", "ById", "--id", unique_id, "--deliver-at", at)
    assert (code, unique_id in said) == (0, True)
    assert "the recall is stored" in said
    assert "nobody checks" in said
    code, _, said = run(
        "message", "cancel", "ById", "--id", unique_id, "--deliver-at", "2001-01-01"
    )
    assert (code, "has come" in said) == (1, True)


def test_the_time_that_send_prints_is_the_one_that_cancel_takes(run: Run) -> None:
    """Given as a span, so that nobody but the broker knows it; as JSON and in the table."""
    options = ("--delay", "59m")
    (sent,) = lines(run("message", "send", "Span", "never", *options, "--json")[1])
    asked = ("message", "cancel", "Span", "--id")
    at = str(sent["deliver_at_ms"])
    code, out, _ = run(*asked, str(sent["msg_id"]), "--deliver-at", at, "--json")
    assert (code, json.loads(out)["deliver_at_ms"]) == (0, sent["deliver_at_ms"])

    head, row = run("message", "send", "Span", "never", *options)[1].splitlines()
    assert head.endswith("DELIVER AT")
    unique_id, at = row.split()[-2:]
    code, _, said = run(*asked, unique_id, "--deliver-at", at)
    assert (code, f"waits for exactly {at}, it is not delivered" in said) == (0, True)


def test_a_message_without_a_time_of_its_own_has_none_in_the_listing(run: Run) -> None:
    (sent,) = lines(run("message", "send", "Plain", "x", "--json")[1])
    assert "deliver_at_ms" not in sent
    assert "DELIVER" not in run("message", "send", "Plain", "x", "--delay-level", "1")[1]


@pytest.mark.parametrize("timestamp_ms", [1_740_832_200_123, 1_999_999_999_999, 4_338_653_458_000])
def test_a_printed_time_is_read_back_to_the_millisecond(timestamp_ms: int) -> None:
    for step in range(1000):
        assert parse_time(exact_time(timestamp_ms + step)) == timestamp_ms + step


@pytest.mark.parametrize(
    ("unique_id", "at", "named"),
    [
        ("nope", "2099-01-01", "nope is no message id: they have 32 or 56 hex digits"),
        ("A" * 33, "2099-01-01", "32 or 56 hex digits"),
        ("A" * 32, "2020-01-01T00:00+00:00", "--deliver-at 2020-01-01T00:00+00:00 has come"),
    ],
)
def test_a_cancel_of_what_cannot_wait_is_refused_before_anything_is_sent(
    unique_id: str, at: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A connection that is tried would be refused, which exits 3.
    code = main(["message", "cancel", "T", "--id", unique_id, "--deliver-at", at, *NOBODY])
    assert code in (output.REFUSED, output.USAGE)
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel", "T"],
        ["cancel", "T", "djE=", "--id", "A"],
        ["cancel", "T", "--id", "A"],
        ["cancel", "T", "--deliver-at", "1"],
        ["cancel", "T", "nohandle"],
        ["send", "T", "x", "--deliver-at", "tomorrow"],
        ["send", "T", "x", "--deliver-at", "12"],
        ["send", "T", "x", "--property", "DELAY=abc"],
        ["send", "T", "x", "--delay", "1s", "--delay-level", "1"],
    ],
)
def test_a_time_or_a_cancel_that_means_nothing_exits_2(run: Run, arguments: list[str]) -> None:
    code, _, said = run("message", *arguments)
    assert (code, said.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delay", "5y"], "--delay: must be seconds, or a number followed by s, m, h or d"),
        (["--delay", "-5"], "--delay: must be above 0"),
        (["--delay", "41d"], "--delay: must be at most 40 days (40d), not 41d"),
        (["--delay-level", "19"], "--delay-level: must be 0 to 18, not 19"),
        (["--delay-level", "abc"], "--delay-level: must be a whole number, not abc"),
    ],
)
def test_what_a_delay_may_be_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["message", "send", "T", "x", *arguments, *NOBODY])
    assert said in capsys.readouterr().err


def test_the_help_of_send_says_what_the_delay_levels_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["message", "send", "--help"])
    levels = BY_NAME["message_delay_levels"].default
    help_text = " ".join(capsys.readouterr().out.split())
    assert f"level 1 to 18: {levels}," in help_text


def test_pull_takes_a_condition_on_properties(capsys: pytest.CaptureFixture[str]) -> None:
    with testing.broker(property_filter=True) as running:

        def run(*arguments: str) -> tuple[int, str, str]:
            capsys.readouterr()
            code = main(["message", *arguments, "-n", running.name_server])
            return code, *capsys.readouterr()

        for number in range(5):
            run("send", "Sql", str(number), "--queue", "0", "--property", f"n={number}")
        code, out, said = run("pull", "Sql", "--sql", "n > 2", "--json")
        assert (code, said, [one["body"] for one in lines(out)]) == (0, "", ["3", "4"])
        code, out, _ = run("tail", "Sql", "--sql", "n = 3", "--from", "0", "--count", "1", "--json")
        assert (code, [one["body"] for one in lines(out)]) == (0, ["3"])
        said = run("pull", "Sql", "--sql", "n > 9")[2]
        assert said == "no messages in Sql from earliest on where n > 9\n"
        said = run("pull", "Sql", "--sql", "n < 3", "--count", "1")[2]
        assert said.startswith("1 shown, ")
        code, _, said = run("pull", "Sql", "--sql", "n >")
        assert (code, "SQL92" in said) == (1, True)


def test_people_get_a_table_and_lines(run: Run) -> None:
    out = run("message", "send", "plain", "--tags", "t", "two teas")[1]
    assert out.splitlines()[0].split() == ["STATUS", "BROKER", "QUEUE", "OFFSET", "MESSAGE", "ID"]
    out = run("message", "pull", "plain")[1]
    assert out.rstrip().endswith("[t]  two teas")
    out = run("message", "pull", "plain", "--full")[1]
    assert "property TAGS" in out


def test_lines_of_standard_input_keep_their_order_by_order_key(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"line {number}\n" for number in range(100))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, out, _ = run("message", "send", "log", "--lines", "--order-key", "x", "--json")
    assert code == 0
    assert len({message["queue"] for message in lines(out)}) == 1
    pulled = lines(run("message", "pull", "log", "--count", "1000", "--json")[1])
    assert [message["body"] for message in pulled] == text.splitlines()


def test_pull_merges_queues_by_time_and_stops_at_the_count(run: Run) -> None:
    for number in range(20):
        run("message", "send", "merged", str(number))
    pulled = lines(run("message", "pull", "merged", "--count", "15", "--json")[1])
    assert [message["body"] for message in pulled] == [str(number) for number in range(15)]
    assert len({message["queue"] for message in pulled}) > 1


def test_pull_filters_by_tags_queue_and_start(run: Run) -> None:
    run("topic", "create", "filtered", "--queues", "2")
    for number in range(6):
        tag = "even" if number % 2 == 0 else "odd"
        run("message", "send", "filtered", str(number), "--queue", "1", "--tags", tag)

    def bodies(*arguments: str) -> list[object]:
        return [
            m["body"] for m in lines(run("message", "pull", "filtered", "--json", *arguments)[1])
        ]

    assert bodies("--tags", "even") == ["0", "2", "4"]
    assert bodies("--tags", "even || odd", "--from", "4") == ["4", "5"]
    assert bodies("--from", "latest") == []
    assert bodies("--queue", "0") == []
    assert bodies("--from", "2001-01-01T00:00") == [str(number) for number in range(6)]
    # The broker's answer to such a time is the last message.
    assert bodies("--from", "2099-01-01T00:00") == []
    stored = [
        int(str(m["store_timestamp_ms"]))
        for m in lines(run("message", "pull", "filtered", "--json")[1])
    ]
    found = bodies("--from", str(stored[3]))
    assert found == [str(n) for n in range(6) if stored[n] >= stored[3]]


def test_what_is_not_there_exits_1(run: Run) -> None:
    assert run("topic", "describe", "nowhere")[0] == 1
    assert run("message", "pull", "nowhere")[0] == 1
    run("topic", "create", "empty")
    assert run("message", "query", "empty", "--key", "nothing") == (
        *(1, ""),
        "aerobee: no message with key nothing in topic empty at bee; a message that waits for its "
        "time is in the index only from its delivery on, and can be taken back until then: aerobee "
        "message cancel empty, with the handle that message send printed\n",
    )
    assert run("message", "send", "empty", "x", "--queue", "99")[0] == 1


def test_an_empty_topic_is_no_error(run: Run) -> None:
    run("topic", "create", "bare")
    code, out, err = run("message", "pull", "bare")
    assert (code, out) == (0, "")
    assert "no messages in bare" in err


def test_a_filter_that_lets_nothing_through_is_named(run: Run) -> None:
    run("message", "send", "tagged", "x", "--tags", "hot")
    err = run("message", "pull", "tagged", "--tags", "nosuch")[2]
    assert err == "no messages in tagged from earliest on with tags nosuch\n"


def test_without_a_broker_the_list_of_topics_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address: Future[str] = Future()
    stop: Future[None] = Future()

    async def serve() -> None:
        server = NameServer("127.0.0.1", 0, tmp_path / "kv.json")
        await server.start()
        address.set_result(f"127.0.0.1:{server.port}")
        await asyncio.wrap_future(stop)
        await server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    try:
        for flags in ([], ["--all"]):
            assert main(["topic", "list", *flags, "-n", address.result(30)]) == 1
            assert capsys.readouterr() == ("", "aerobee: no broker is registered\n")
    finally:
        stop.set_result(None)
        thread.join(30)


def test_what_was_stored_before_a_send_failed_is_reported(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"first\nsecond\n" + b"x" * (5 << 20) + b"\nnever read\n"
    for flags in ([], ["--json"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        code, out, err = run("message", "send", "broken-off", "--lines", *flags)
        assert code != 0
        assert len(re.findall(r"\bOK\b", out)) == 2
        assert "2 messages were sent before it ended\naerobee: " in err
    assert "were sent before" not in run("message", "send", "broken-off", "x", "--queue", "99")[2]


def test_wrong_use_exits_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("message", "send", "a topic", "x")[0] == 2
    assert run("message", "send", "t", "x", "--lines")[0] == 2
    assert run("message", "send", "t", "x", "--property", "nonsense")[0] == 2
    assert run("message", "send", "t", "x", "--queue", "1", "--order-key", "k")[0] == 2
    assert run("message", "query", "--key", "k")[0] == 2
    assert run("message", "query", "--id", "zz")[0] == 2


def leaves_with_a_topic(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The client commands that take a topic."""
    assert isinstance(parser, Parser)
    parser.declare()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for leaf in action.choices.values():
                yield from leaves_with_a_topic(leaf)
    taken = {action.dest for action in parser._actions}
    if {"topic", "name_servers"} <= taken and not parser.get_default("job"):
        yield parser.get_default("command")


# Arguments that a command must have before and after the topic.
BEFORE = {
    "offset show": ["G", "--topic"],
    "offset reset": ["G"],
    "message skip": ["G"],
    "message show": ["0" * 32, "--topic"],
    "offset clone": ["G", "H", "--topic"],
    "client list": ["--topic"],
    **{f"bench {mode}": ["--topic"] for mode in ("send", "batch", "pull", "e2e")},
}
MORE = {
    "message send": ["x"],
    "message query": ["--key", "k"],
    "message cancel": ["--id", "A", "--deliver-at", "1"],
    "offset reset": ["--to", "earliest"],
    "message skip": ["--queue", "0"],
}
NOBODY = ["-n", "127.0.0.1:1", "--timeout", "2"]


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of the commands themselves."""
    assert isinstance(parser, Parser)
    parser.declare()
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for below in group.choices.values():
            yield from leaves(below)


def test_whatever_does_nothing_without_yes_takes_a_dry_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Without it, `topic create` creates.
    asking = [
        one
        for one in leaves(build_parser())
        if "--yes" in one._option_string_actions and one.get_default("command") != "topic create"
    ]
    assert len(asking) >= 5
    for parser in asking:
        words = [one.dest for one in parser._actions if not one.option_strings]
        for name, value in {"--to": "latest", "--at": "0", "--queue": "0"}.items():
            words += [name, value] if name in parser._option_string_actions else []
        assert not parser.parse_args([*words, "--dry-run"]).yes
        with pytest.raises(SystemExit):
            parser.parse_args([*words, "--dry-run", "--yes"])
        assert "--yes: not allowed with argument --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    # Brokers have topics of names that no other topic may have; to monitoring systems all is 3.
    [
        one
        for one in leaves_with_a_topic(build_parser())
        if one not in ("topic describe", "topic explain") and not one.startswith("check ")
    ],
)
@pytest.mark.parametrize("topic", ["Or ders", "Or/ders", "", "x" * 128])
def test_an_illegal_topic_exits_2_before_anything_is_sent(
    command: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A connection that is tried would be refused, which exits 3.
    before, behind = BEFORE.get(command, []), MORE.get(command, [])
    assert main([*command.split(), *before, topic, *behind, *NOBODY]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("aerobee: the specified topic ")


def test_names_of_brokers_and_clusters_are_described_whatever_they_are(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a topic of its name, which no other topic might have."""
    code, _, err = run("topic", "describe", "Or ders")
    assert (code, err) == (
        2,
        "aerobee: the specified topic contains characters other than [%|a-zA-Z0-9_-]+\n",
    )
    names = {"broker_name": "node1.example.org", "cluster_name": "Rack 1/b"}
    with testing.broker(**names) as broker:
        servers = ["-n", broker.name_server]
        for name in names.values():
            assert main(["topic", "describe", name, *servers]) == 0
        assert main(["message", "send", "Orders", "x", *servers]) == 0
        assert main(["topic", "create", "Made", "--cluster", "Rack 1/b", *servers]) == 0
        capsys.readouterr()
        assert main(["message", "pull", "Orders", "--broker", "node1.example.org", *servers]) == 0
        assert capsys.readouterr().out.endswith("  x\n")


def test_an_option_in_front_of_the_command_is_told_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["-n", "127.0.0.1:1", "topic", "list"])
    assert ended.value.code == 2
    assert "-n goes after the command, as in: aerobee COMMAND ... -n" in capsys.readouterr().err


def test_the_longest_delays_are_the_clients() -> None:
    assert argument_types.MAX_DELAY_S == message.MAX_DELAY_S
    assert argument_types.MAX_DELAY_LEVEL == message.MAX_DELAY_LEVEL


@pytest.mark.parametrize("command", ["pull", "tail"])
def test_a_start_or_filter_that_means_nothing_exits_2_before_anything_is_sent(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, said in (
        (["--from", "yesterday"], "not a time: 'yesterday'"),
        (["--tags", "||"], "'||' names no tag"),
    ):
        assert main(["message", command, "t", *flags, *NOBODY]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "create", "t"),
        ("message", "send", "t", "x"),
        ("message", "pull", "t"),
        ("message", "query", "--id", "7F0000010000511C0000000000000000"),
        ("broker", "clean", "--log"),
    ],
)
def test_an_address_that_is_no_name_server_s_exits_3_whatever_is_there(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    port = free_port()
    with testing.broker(http_enabled=True, http_port=port) as broker:
        for address, said in (
            (f"127.0.0.1:{port}", f"127.0.0.1:{port} speaks HTTP, not RocketMQ's protocol"),
            (broker.broker, "is a broker, not a name server"),
            ("127.0.0.1:1", "Connection refused (is a broker running? -n names its name server)"),
            ("nosuchhost.invalid:9876", "the host nosuchhost.invalid is not known"),
        ):
            code = main([*words, "-n", address, "--timeout", "5"])
            err = capsys.readouterr().err
            assert (code, said in err, err.count("\n")) == (3, True, 1), err


def test_the_id_that_send_prints_finds_the_message_or_says_what_is_missing(run: Run) -> None:
    sent = run("message", "send", "found", "me")[1].split()[-1]
    code, out, _ = run("message", "query", "found", "--id", sent)
    assert (code, out.endswith("me\n")) == (0, True)
    code, out, err = run("message", "query", "--id", sent)
    assert (code, out) == (2, "")
    assert err.endswith(f"name the topic: aerobee message query TOPIC --id {sent}\n")
    assert run("message", "query", "found", "--id", sent[:-4] + "FFFF") == (
        1,
        "",
        f"aerobee: no message with id {sent[:-4]}FFFF: it names no place in a broker's log; no "
        "message whose client gave this id, in topic found at bee; a message that waits for its "
        "time is in the index only from its delivery on, and can be taken back until then: aerobee "
        "message cancel found, with the handle that message send printed\n",
    )
    code, _, err = run("message", "query", "found", "--key", "no such key")
    assert code == 1
    assert err.startswith("aerobee: no message with key no such key in topic found at bee; ")


def test_lines_end_in_a_total(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, total in ((b"a\nb\n\nc", "3 messages were sent\n"), (b"a\n", "1 message was sent\n")):
        stream = io.TextIOWrapper(io.BytesIO(text))
        monkeypatch.setattr(sys, "stdin", stream)
        code, _, err = run("message", "send", "totals", "--lines")
        assert (code, err) == (0, total)


def test_an_output_without_room_is_one_line(running: RunningBroker) -> None:
    with open("/dev/full", "w") as full:
        for words in (["topic", "list", "--all"], ["topic", "list", "--all", "--json"]):
            done = subprocess.run(
                [sys.executable, "-m", "aerobee.cli", *words, "-n", running.name_server],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert (done.returncode, done.stderr) == (
                1,
                "aerobee: the output cannot be written: No space left on device\n",
            )


def test_a_word_that_is_no_command_has_the_nearest_one_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, near in ((["mesage"], "message"), (["message", "snd"], "send")):
        with pytest.raises(SystemExit, match="2"):
            main(words)
        said = f"there is no {words[-1]!r}; did you mean {near}?"
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("words", "shown"), [([], "first steps:"), (["message"], "tail")])
def test_where_a_command_is_missing_the_help_is_shown(
    capsys: pytest.CaptureFixture[str], words: list[str], shown: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: aerobee")
    assert shown in err


def test_a_topic_without_the_right_to_write_is_tried_once(run: Run) -> None:
    run("topic", "create", "closed-later")
    run("topic", "create", "closed-later", "--perm", "r", "--update")
    code, _, err = run("message", "send", "closed-later", "x")
    assert code == 1
    assert err.count("\n") == 1


def test_nobody_there_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "-n", "127.0.0.1:1", "--timeout", "2"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "is a broker running?" in captured.err


def test_tail_prints_what_arrives_and_ends_at_the_count(run: Run, running: RunningBroker) -> None:
    run("topic", "create", "followed")
    command = [sys.executable, "-m", "aerobee.cli", "message", "tail", "followed", "--json"]
    environment = {**os.environ, "NAMESRV_ADDR": running.name_server}
    with subprocess.Popen(
        [*command, "--count", "2", "--from", "earliest"],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as tail:
        watchdog = threading.Timer(30, tail.kill)
        watchdog.start()
        assert tail.stdout is not None
        run("message", "send", "followed", "first")
        assert json.loads(tail.stdout.readline())["body"] == "first"
        run("message", "send", "followed", "second")
        assert json.loads(tail.stdout.readline())["body"] == "second"
        assert tail.wait(30) == 0
        watchdog.cancel()


def test_ctrl_c_ends_tail_without_a_traceback(run: Run, running: RunningBroker) -> None:
    run("topic", "create", "interrupted")
    run("message", "send", "interrupted", "x")
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "aerobee.cli",
            "message",
            "tail",
            "interrupted",
            "--from",
            "earliest",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "NAMESRV_ADDR": running.name_server},
        text=True,
        # A shell that starts the tests in the background has them ignore the signal, and what is
        # ignored is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        _, err = tail.communicate(timeout=30)
        assert (tail.returncode, err) == (130, "")


def test_an_unknown_broker_is_named_with_those_there_are(run: Run) -> None:
    run("topic", "create", "somewhere")
    text = "there is no broker nosuch: there is bee"
    for command in (
        ("send", "somewhere", "x", "--broker", "nosuch", "--queue", "1"),
        ("pull", "somewhere", "--broker", "nosuch"),
    ):
        code, out, err = run("message", *command)
        assert (code, out, text in err) == (1, "", True)
    assert run("message", "send", "somewhere", "x", "--broker", "bee")[0] == 2


def test_queue_99_of_a_known_broker_is_about_the_queue(run: Run) -> None:
    run("topic", "create", "eight")
    code, _, err = run("message", "send", "eight", "x", "--broker", "bee", "--queue", "99")
    assert (code, "has no queue 99" in err) == (1, True)


def test_creating_a_topic_again_as_it_is_changes_nothing(run: Run) -> None:
    run("topic", "create", "twice", "--queues", "3", "--perm", "r")
    for arguments in ((), ("--queues", "3"), ("--perm", "r"), ("--update",)):
        code, _, err = run("topic", "create", "twice", *arguments)
        assert (code, err) == (0, "topic twice: exists already, 3 queues, rights r\n")


def test_a_topic_with_other_settings_is_not_changed_unasked(run: Run) -> None:
    run("topic", "create", "guarded", "--queues", "4")
    for number in range(5):
        run("message", "send", "guarded", str(number), "--queue", "3" if number else "0")
    code, out, err = run("topic", "create", "guarded", "--queues", "2", "--perm", "r", "--json")
    assert (code, out) == (1, "")
    assert "read queues 4 -> 2, write queues 4 -> 2, rights rw -> r on bee" in err
    assert "4 messages would become unreadable" in err
    assert "unreadable" not in run("topic", "create", "guarded", "--queues", "9")[2]
    assert len(json.loads(run("topic", "describe", "guarded", "--json")[1])["queues"]) == 4


def test_update_changes_what_is_named_and_keeps_the_rest(run: Run) -> None:
    run("topic", "create", "grows", "--queues", "2")
    assert run("topic", "create", "grows", "--queues", "5", "--update")[0] == 0
    code, out, _ = run("topic", "create", "grows", "--perm", "r", "--update", "--json")
    assert code == 0
    assert json.loads(out) == {
        "topic": "grows",
        "result": "changed",
        "queues": 5,
        "rights": "r",
        "brokers": ["bee"],
    }


def test_queues_to_write_and_to_read_are_changed_apart(run: Run) -> None:
    run("topic", "create", "apart", "--queues", "4")
    code, _, err = run("topic", "create", "apart", "--write-queues", "2", "--update")
    assert (code, err) == (0, "topic apart: 2 queues to write, 4 to read, rights rw\n")
    code, _, err = run("topic", "create", "apart", "--queues", "2", "--read-queues", "2")
    assert (code, "give it, or --read-queues" in err) == (2, True)
    code, _, err = run("topic", "create", "apart", "--read-queues", "1", "--update")
    assert (code, "from 1 on could not be read" in err) == (2, True)
    code, _, err = run("topic", "create", "apart", "--read-queues", "2", "--update")
    assert (code, err) == (0, "topic apart: 2 queues, rights rw\n")
    run("topic", "create", "anew", "--write-queues", "3")
    assert run("topic", "create", "anew")[2] == "topic anew: exists already, 3 queues, rights rw\n"


def test_a_topic_made_smaller_says_what_waits_for_the_queues_that_fall_away(run: Run) -> None:
    run("topic", "create", "waits", "--queues", "4")
    for queue in ("1", "3", "3"):
        run("message", "send", "waits", "x", "--queue", queue, "--delay-level", "18")
    run("message", "send", "waits", "x", "--queue", "2", "--delay", "3h")
    smaller = ("topic", "create", "waits", "--queues", "2")
    code, _, err = run(*smaller)
    said = (
        "0 messages would become unreadable, in the queues that fall away; 3 messages that wait "
        "(2 delayed, 1 with a time of their own) for those queues would be stored in the ones "
        "that stay"
    )
    assert (code, said in err) == (1, True), err
    code, _, err = run(*smaller, "--update")
    assert (code, said in err, "nothing was changed; --yes does it" in err) == (0, True, True)
    code, out, _ = run(*smaller, "--update", "--json")
    told = json.loads(out)
    assert told["result"] == "unchanged"
    assert told["waiting"] == {"delayed": 2, "timed": 1, "half": 0, "staged": 0}
    assert run("topic", "create", "waits")[2].startswith("topic waits: exists already, 4 queues")
    assert run(*smaller, "--update", "--yes")[2] == "topic waits: 2 queues, rights rw\n"


def test_of_a_broker_that_does_not_tell_what_waits_is_said_not_to_be_known(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tells_nothing(_self: Admin, _topic: str, brokers: Iterable[str]) -> dict[str, None]:
        return dict.fromkeys(brokers)

    run("topic", "create", "silent", "--queues", "2")
    monkeypatch.setattr(Admin, "waiting_messages", tells_nothing)
    code, _, err = run("topic", "create", "silent", "--queues", "1", "--update")
    assert (code, "what waits on bee is not known" in err) == (0, True)
    assert run("topic", "create", "silent")[2].startswith("topic silent: exists already, 2 queues")
    _, out, _ = run("topic", "delete", "silent", "--json")
    assert json.loads(out)["waiting_not_known_on"] == ["bee"]
    run("topic", "create", "silent", "--queues", "1", "--update", "--yes")
    assert run("topic", "create", "silent")[2].startswith("topic silent: exists already, 1 queues")


def test_a_topic_that_is_deleted_says_what_waits_for_it(run: Run) -> None:
    run("topic", "create", "ends", "--queues", "2")
    run("message", "send", "ends", "x", "--queue", "1", "--delay-level", "18")
    _, _, err = run("topic", "delete", "ends")
    assert "1 message that waits (1 delayed) would be dropped\n" in err
    _, out, _ = run("topic", "delete", "ends", "--yes", "--json")
    told = json.loads(out)
    assert (told["waiting"], told["waiting_not_looked_at"], told["deleted"]) == (1, 0, True)
    run("topic", "create", "ends", "--queues", "2")
    assert json.loads(run("topic", "delete", "ends", "--json")[1])["waiting"] == 0


def test_pull_says_what_the_count_cut_off_and_where_to_go_on(run: Run) -> None:
    run("topic", "create", "many", "--queues", "2")
    for queue in ("0", "1"):
        run("message", "send", "many", "x", "--repeat", "20", "--queue", queue)
    _, out, err = run("message", "pull", "many")
    assert len(out.splitlines()) == 32
    assert err == "32 of 40 shown; --count N for more; next offsets: bee/1@12\n"
    err = run("message", "pull", "many", "--queue", "1", "--count", "5", "--from", "3")[2]
    assert err == "5 of 17 shown; --count N for more, --from 8 to go on\n"
    err = run("message", "pull", "many", "--queue", "1", "--from", "8")[2]
    assert err == ""
    assert run("message", "pull", "many", "--count", "40")[2] == ""


def test_a_broker_given_as_name_server_is_recognised(
    running: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    address = running.broker
    for command in (["topic", "list"], ["message", "pull", "t"], ["topic", "create", "t"]):
        assert main([*command, "-n", address]) == 3
        assert f"{address} is a broker, not a name server" in capsys.readouterr().err


def test_brokers_are_asked_to_clean(run: Run) -> None:
    run("message", "send", "left", "x")
    code, out, _ = run("broker", "clean", "--log", "--queues", "--topics", "--json")
    assert (code, json.loads(out)) == (0, {"brokers": ["bee"]})
    assert "say what to clean" in run("broker", "clean")[2]
    code, _, error = run("broker", "clean", "--log", "--broker", "wasp")
    assert code == 1
    assert "wasp" in error


def test_running_brokers_say_what_they_are_set_to(run: Run) -> None:
    code, out, _ = run("broker", "config", "brokerName", "flushDiskType", "--json")
    assert (code, json.loads(out)) == (
        0,
        {"bee": {"brokerName": "bee", "flushDiskType": "ASYNC_FLUSH"}},
    )
    code, out, _ = run("broker", "config", "--broker", "bee")
    assert (code, "maxMessageSize" in out) == (0, True)
    code, _, error = run("broker", "config", "flushDiskTyp")
    assert (code, "did you mean flushDiskType?" in error) == (1, True)
    code, _, error = run("broker", "config", "--broker", "wasp")
    expected = "aerobee: no name server knows a master of broker 'wasp': there is bee\n"
    assert (code, error) == (1, expected)


def test_a_broker_that_lets_nobody_change_its_settings_says_so(run: Run) -> None:
    code, _, error = run("broker", "config", "--set", "fileReservedTime=48")
    assert (code, "admin.remote_config is off" in error) == (output.REFUSED, True)
    with pytest.raises(SystemExit) as ended:
        run("broker", "config", "--set", "fileReservedTime")
    assert ended.value.code == output.USAGE


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("broker config ?", "KEY"),
        ("message send T x --tags ?", "--tags"),
        ("message send T x --keys ?", "--keys/--key"),
        ("message send T x --property a=?", "--property"),
        ("message send T x --order-key ?", "--order-key"),
        ("message send ? x", "topic"),
        ("message send T x --deliver-at ?", "--deliver-at"),
        ("message cancel T --id ? --deliver-at 1", "--id"),
        ("message query T --key ?", "--key"),
        ("message query T --id ?", "--id"),
        ("message pull T --tags ?", "--tags"),
        ("message pull ?", "topic"),
        ("message tail T --from ?", "--from"),
        ("topic create ?", "topic"),
        ("topic create T --cluster ?", "--cluster"),
        ("topic describe T -n ?", "-n/--name-servers"),
        ("broker clean --log --broker ?", "--broker"),
        ("group describe ?", "group"),
        ("offset show G --topic ?", "--topic"),
        ("offset reset G T --to ?", "--to"),
        ("offset clone ? G", "SOURCE"),
    ],
)
def test_an_argument_that_is_no_utf8_is_named(
    command: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main([word.replace("?", "x\udcff") for word in command.split()])
    assert exit.value.code == 2
    said = capsys.readouterr().err
    assert f"error: argument {named}: " in said
    assert "is not valid UTF-8" in said
