"""`aerobee check`: thresholds, lines and exit codes of monitoring plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from aerobee import testing
from aerobee.cli.doctor.checks import _used_percent
from aerobee.cli.doctor.thresholds import Measured, Range, Thresholds, line_of
from aerobee.cli.main import main
from aerobee.client import blocking_roles
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import Model, PushOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.statistics import ConsumeStats
from aerobee.testing import RunningBroker
from tests.ports import free_port
from tests.tls.authority import Authority

Check = Callable[..., tuple[int, str]]
#: One line: state, text and data, as plugins have them.
LINE = re.compile(r"[A-Z]+ (OK|WARNING|CRITICAL|UNKNOWN) - [^|\n]+( \| \S+=\S+( \S+=\S+)*)?\n")
UNKNOWN = 3


@pytest.mark.parametrize(
    ("text", "quiet", "alerts"),
    [
        ("10", (0, 10), (-1, 10.1)),
        ("10:", (10, 1e9), (9.9, -5)),
        ("~:10", (-1e9, 10), (10.5,)),
        ("10:20", (10, 20), (9, 21)),
        ("@10:20", (9, 21), (10, 15, 20)),
        ("0", (0,), (1,)),
        ("-5:.5", (-5, 0.5), (-6, 0.6)),
    ],
)
def test_a_range_alerts_as_the_plugins_have_it(
    text: str, quiet: tuple[float, ...], alerts: tuple[float, ...]
) -> None:
    span = Range.parse(text)
    assert [span.alerts(value) for value in quiet] == [False] * len(quiet)
    assert [span.alerts(value) for value in alerts] == [True] * len(alerts)


@pytest.mark.parametrize(
    "text", ["", "@", "ten", "10;20", "20:10", "1:2:3", "1e5", "10 ", "9" * 40]
)
def test_other_texts_are_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        Range.parse(text)


def test_a_line_has_one_pipe_and_quoted_labels() -> None:
    both = Thresholds(Range.parse("1"), Range.parse("2"))
    values = [Measured("a=b 'c'", 1.5, "s"), Measured("plain", 2)]
    line = line_of("lag", 1, "odd | text", values, both)
    assert line == "LAG WARNING - odd / text | a_b_c_=1.5s;1;2 plain=2;1;2"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def running(authority: Authority) -> Iterator[RunningBroker]:
    """A broker that takes TLS too, with a group that is three messages behind, and has two dead
    letters."""
    pair = authority.pair("bee", days=20)
    with testing.broker(
        broker_name="bee",
        tls_mode="permissive",
        tls_certificate_path=str(pair.certificate),
        tls_key_path=str(pair.key),
    ) as broker:
        with blocking_roles.Admin(broker.name_server) as admin:
            for topic in ("orders", "%DLQ%behind"):
                admin.create_topic(topic, queues=1)
            with blocking_roles.Producer(broker.name_server, "P") as producer:
                for topic, count in (("orders", 4), ("%DLQ%behind", 2)):
                    for _ in range(count):
                        producer.send(Message(topic, b"x"))
            admin.commit_offset("behind", MessageQueue("orders", "bee", 0), 1)
        yield broker


@pytest.fixture
def check(running: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Check:
    """Run a check: its exit code and its line."""

    def check(*arguments: str, name_server: str = running.name_server) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["check", *arguments, "-n", name_server])
        line = capsys.readouterr().out
        assert LINE.fullmatch(line), line
        return code, line

    return check


@pytest.mark.parametrize(
    ("warning", "critical", "code"), [("3", "9", 0), ("2", "9", 1), ("2", "2", 2), ("5:", "1:", 1)]
)
def test_lag_is_held_against_both_ranges(
    warning: str, critical: str, code: int, check: Check
) -> None:
    got, line = check("lag", "behind", "--warning", warning, "--critical", critical)
    state = ("OK", "WARNING", "CRITICAL")[code]
    text = "behind has 3 messages before it in 1 topics"
    assert (got, line) == (code, f"LAG {state} - {text} | lag=3;{warning};{critical}\n")


def test_lag_of_one_topic_and_of_one_that_is_not_consumed(check: Check) -> None:
    assert check("lag", "behind", "--topic", "orders")[0] == 0
    assert check("lag", "behind", "--topic", "other")[0] == UNKNOWN


@pytest.mark.parametrize("kind", ["lag", "dlq"])
def test_a_group_that_nobody_knows_is_unknown_and_not_ok(kind: str, check: Check) -> None:
    code, line = check(kind, "mistyped")
    assert (code, "no broker knows a consumer group mistyped" in line) == (UNKNOWN, True)


def test_a_group_that_is_nowhere_yet_is_unknown_and_not_ok(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> ConsumeStats:
        # RocketMQ's brokers answer that for a group that is offline and has no offset.
        return ConsumeStats({})

    monkeypatch.setattr("aerobee.client.admin.Admin.group_stats", nothing)
    code, line = check("lag", "behind")
    assert (code, "no broker knows where it is" in line) == (UNKNOWN, True), line


def test_a_group_that_broadcasts_is_unknown(running: RunningBroker, check: Check) -> None:
    def nothing(messages: list[ReceivedMessage]) -> None:
        pass

    options = PushOptions(model=Model.BROADCASTING)
    with blocking_roles.PushConsumer(running.name_server, "all", nothing, options) as consumer:
        consumer.subscribe("orders")
        code, line = check("lag", "all")
    assert (code, "broadcasting" in line) == (UNKNOWN, True), line


def test_dead_letters_are_counted(running: RunningBroker, check: Check) -> None:
    assert check("dlq", "behind")[0] == 1
    code, line = check("dlq", "behind", "--warning", "2")
    assert (code, line) == (0, "DLQ OK - behind has 2 dead letters | dead=2;2;100\n")
    with blocking_roles.Admin(running.name_server) as admin:
        admin.commit_offset("without", MessageQueue("orders", "bee", 0), 1)
    assert check("dlq", "without") == (
        0,
        "DLQ OK - without has no dead letter topic yet | dead=0;0;100\n",
    )


def test_the_fullest_disk_counts(check: Check) -> None:
    code, line = check("disk", "--warning", "101", "--critical", "101")
    assert (code, " | bee=" in line, "%;101;101" in line) == (0, True, True)
    assert check("disk", "--warning", "101", "--critical", "@0:100")[0] == 2
    assert check("disk", "--broker", "be")[0] == UNKNOWN
    assert _used_percent({"commitLogDiskRatio": "0.25", "consumeQueueDiskRatio": "0.5"}) == 50
    assert _used_percent({"commitLogDiskRatio_/a": "0.75", "commitLogDiskRatio": "0.1"}) == 75
    assert _used_percent({"commitLogDiskRatio": "-1"}) is None


def test_connections_are_timed_and_silence_is_critical(
    running: RunningBroker, check: Check
) -> None:
    code, line = check("connection", "--warning", "60", "--critical", "60")
    assert (code, "1 name servers and 1 masters answer" in line) == (0, True)
    assert line.count("s;60;60") == 2
    dead = f"127.0.0.1:{free_port()}"
    assert check("connection", name_server=dead)[0] == 2
    code, line = check("connection", name_server=f"{dead};{running.name_server}")
    assert (code, f"{dead} does not answer" in line) == (2, True)


def test_silence_is_unknown_to_the_other_checks(check: Check) -> None:
    dead = f"127.0.0.1:{free_port()}"
    for words in (("lag", "behind"), ("dlq", "behind"), ("disk",), ("certificate",)):
        assert check(*words, name_server=dead)[0] == UNKNOWN


def test_certificates_of_files_and_ports(
    running: RunningBroker, authority: Authority, check: Check
) -> None:
    code, line = check("certificate")
    assert (code, running.broker in line, "holds for 19 days" in line) == (1, True, True)
    assert check("certificate", running.broker, "--warning", "10:")[0] == 0
    good, ended = authority.pair("good"), authority.pair("ended", days=-1)
    assert check("certificate", str(good.certificate))[0] == 0
    code, line = check("certificate", str(ended.certificate), "--critical=-90:")
    assert (code, "has ended" in line) == (2, True)
    assert check("certificate", str(good.key))[0] == UNKNOWN
    assert check("certificate", "/no/such/file")[0] == UNKNOWN
    assert check("certificate", f"127.0.0.1:{free_port()}")[0] == UNKNOWN


def test_a_wrong_command_line_is_unknown_to_monitoring(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("lag",), ("lag", "g", "--wrong"), ("disk", "more"), ("lagg",)):
        with pytest.raises(SystemExit) as ended:
            main(["check", *words])
        assert ended.value.code == UNKNOWN
    assert main(["check", "lag", "g", "--warning", "high"]) == UNKNOWN
    assert "is no range" in capsys.readouterr().out
