"""From a command line or a workload file to what is done."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from aerobee.cli.arguments.parser import build_parser
from aerobee.cli.bench.bench_plan import BenchPlan, plan_of
from aerobee.cli.bench.bench_topics import BenchTopic
from aerobee.cli.bench.fleet import specs_of
from aerobee.cli.bench.generator.security import Security
from aerobee.cli.bench.loads import Mode
from aerobee.cli.printing.output import CommandFailed
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.statistics import QueueOffsets

WORKLOAD = """\
name: some topics
topics: 3
partitionsPerTopic: 4
messageSize: 200
subscriptionsPerTopic: 2
consumerPerSubscription: 3
producersPerTopic: 2
producerRate: 9000
consumerBacklogSizeGB: 2
testDurationMinutes: 5
"""


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user who runs the tests may have an account."""
    for name in ("AEROBEE_CREDENTIALS", "ROCKETMQ_HOME"):
        monkeypatch.delenv(name, raising=False)


def parse(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["bench", *arguments])


def refused(*arguments: str) -> str:
    with pytest.raises(CommandFailed) as error:
        plan_of(parse(*arguments))
    assert error.value.code == 2
    return str(error.value)


def test_the_options_of_a_send_are_its_plan() -> None:
    plan = plan_of(
        parse(
            *("send", "--size", "1024", "--connections", "64", "--in-flight", "32", "--seed", "9"),
            *("--queues", "4", "--duration", "2m", "--warm-up", "0", "--processes", "3", "--keep"),
        )
    )
    assert (plan.mode, plan.payload.size, plan.producers, plan.in_flight) == ("send", 1024, 64, 32)
    assert (plan.queues, plan.duration_s, plan.warm_up_s) == (4, 120.0, 0.0)
    assert (plan.processes, plan.seed, plan.keep, plan.rate) == (3, 9, True, None)
    assert (plan.consumes, plan.readers, plan.batch) == (False, 0, 0)
    assert plan.settings.rate is None


def test_an_open_loop_is_not_held_by_its_answers() -> None:
    assert plan_of(parse("send")).in_flight == 1
    plan = plan_of(parse("send", "--rate", "5000"))
    assert (plan.rate, plan.in_flight) == (5000.0, 1000)


def test_the_rate_of_batches_is_one_of_messages() -> None:
    plan = plan_of(parse("batch", "--batch", "50", "--rate", "5000"))
    assert (plan.batch, plan.settings.rate) == (50, 100.0)


def test_a_pull_stores_first_and_sends_nothing_then() -> None:
    plan = plan_of(parse("pull", "--messages", "500", "--max", "16", "--connections", "2"))
    assert (plan.producers, plan.readers, plan.stored, plan.fetch) == (0, 2, 500, 16)
    assert plan.settings.stamped is False


def test_end_to_end_has_consumers_and_stamps() -> None:
    plan = plan_of(parse("e2e", "--subscriptions", "2", "--consumers", "3", "--connections", "4"))
    assert (plan.subscriptions, plan.consumers, plan.producers) == (2, 3, 4)
    assert plan.settings.stamped
    assert plan.connections == 10


def test_a_workload_is_its_plan(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    plan = plan_of(parse("workload", str(file)))
    assert (plan.name, plan.mode, plan.topics) == ("some topics", Mode.END_TO_END, 3)
    assert (plan.queues, plan.queues_shared, plan.producers) == (4, True, 2)
    assert (plan.rate, plan.in_flight, plan.payload.size) == (9000.0, 1000, 200)
    assert (plan.backlog_bytes, plan.warm_up_s, plan.duration_s) == (2 << 30, 60.0, 300.0)
    shorter = plan_of(parse("workload", str(file), "--duration", "3", "--warm-up", "0"))
    assert (shorter.warm_up_s, shorter.duration_s) == (0.0, 3.0)


def test_a_workload_without_subscriptions_only_sends(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    text = WORKLOAD.replace("subscriptionsPerTopic: 2", "subscriptionsPerTopic: 0")
    text = text.replace("consumerBacklogSizeGB: 2\n", "").replace("9000", "0")
    file.write_text(text)
    plan = plan_of(parse("workload", str(file)))
    assert (plan.mode, plan.rate, plan.in_flight) == (Mode.SEND, None, 1)


def test_a_workload_that_is_wrong_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("topics: x\n")
    assert f"{file}: line 1: topics must be" in refused("workload", str(file))


def test_what_no_broker_would_take_is_refused() -> None:
    assert "make --batch or the messages smaller" in refused("batch", "--size", "200000")
    text = refused("send", "--size", "4000000", "--in-flight", "100")
    assert text.endswith("are more than 256 MiB: give less --in-flight")
    assert "--processes must be at most 64" in refused("send", "--processes", "100")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "--size", "0"), "must be at least 1"),
        (("send", "--size", "4194305"), "must be at most 4194304"),
        (("send", "--connections", "10001"), "must be at most 10000"),
        (("send", "--rate", "0"), "must be above 0"),
        (("send", "--rate", "nan"), "must be above 0"),
        (("send", "--warm-up", "soon"), "must be seconds"),
        (("send", "--duration", "0"), "must be above 0"),
        (("send", "--fetch", "3"), "unrecognized arguments"),
        (("send", "--subscriptions", "3"), "unrecognized arguments"),
        (("workload",), "required: FILE"),
    ],
)
def test_options_that_are_none_are_usage_errors(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(*arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


# Accounts and TLS


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: user\nsecretKey: hidden-key\n")
    return file


@pytest.mark.parametrize("mode", ["send", "batch", "pull", "e2e", "workload"])
def test_a_plan_signs_with_the_file_that_is_named(
    mode: str, credentials: Path, tmp_path: Path
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    words = (mode, str(file)) if mode == "workload" else (mode,)
    assert plan_of(parse(*words)).security == Security()
    plan = plan_of(parse(*words, "--credentials", str(credentials)))
    assert plan.security == Security(access_key="user", secret_key="hidden-key")
    assert "hidden-key" not in repr(plan)


def test_a_plan_signs_as_the_environment_says(
    credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEROBEE_CREDENTIALS", str(credentials))
    assert plan_of(parse("send")).security.signed


def test_a_plan_speaks_tls_where_it_or_a_file_of_certificates_is_named() -> None:
    assert plan_of(parse("send", "--tls")).security == Security(use_tls=True)
    plan = plan_of(
        parse(
            *("pull", "--trust-store", "trusted.pem", "--certificate", "own.pem"),
            *("--certificate-key", "own.key"),
        )
    )
    assert plan.security == Security(
        use_tls=True, trust_store="trusted.pem", certificate="own.pem", certificate_key="own.key"
    )


def test_a_file_without_keys_is_refused_and_not_shown(credentials: Path) -> None:
    credentials.write_text("secretKey: hidden-key\n")
    said = refused("send", "--credentials", str(credentials))
    assert said == f"{credentials}: accessKey and secretKey must be there"
    assert "nowhere.yml: No such file" in refused("send", "--credentials", "nowhere.yml")


# The division of the work


def place(brokers: int = 2, queues: int = 3, stored: int = 5) -> BenchTopic:
    names = [f"broker-{n}" for n in range(brokers)]
    own = [MessageQueue("Orders", name, n) for name in names for n in range(queues)]
    begun = {queue: QueueOffsets(100, 100 + stored, 0) for queue in own}
    return BenchTopic("Orders", own, own, {name: f"{name}:1" for name in names}, begun)


def plan(**changes: Any) -> BenchPlan:
    fields: dict[str, Any] = {"name": "x", "mode": Mode.SEND, "payload": None}
    return BenchPlan(**{**fields, **changes})


def test_connections_are_dealt_to_processes_and_brokers() -> None:
    specs = specs_of(plan(producers=5, processes=2), [place()])
    senders = [one for spec in specs for one in spec.senders]
    assert [len(spec.senders) for spec in specs] == [3, 2]
    assert sorted(one.number for one in senders) == [0, 1, 2, 3, 4]
    assert {one.connections for one in senders} == {5}
    assert sorted(one.address for one in senders) == ["broker-0:1"] * 3 + ["broker-1:1"] * 2
    assert all(one.queue_ids == [0, 1, 2] for one in senders)


def test_every_process_gets_the_keys() -> None:
    security = Security(access_key="user", secret_key="hidden-key")
    specs = specs_of(plan(producers=4, processes=2, security=security), [place()])
    assert [spec.security for spec in specs] == [security, security]


def test_every_broker_is_sent_to_and_no_process_is_without_work() -> None:
    specs = specs_of(plan(producers=1, processes=8), [place(brokers=3)])
    assert [len(spec.senders) for spec in specs] == [1, 1, 1]
    assert len({spec.senders[0].address for spec in specs}) == 3


def test_consumers_of_a_subscription_share_the_queues() -> None:
    specs = specs_of(plan(subscriptions=2, consumers=2, processes=1), [place()])
    found = sorted((one.address, *queue) for one in specs[0].readers for queue in one.queues)
    # Each queue twice, once a subscription, from its end on.
    once = [(f"broker-{b}:1", n, 105) for b in range(2) for n in range(3)]
    assert found == sorted(once * 2)
    assert all(one.follows for one in specs[0].readers)


def test_pulls_begin_at_the_beginning_and_leave_empty_queues_out() -> None:
    there = place(brokers=1, queues=2)
    there.begun[there.read[1]] = QueueOffsets(7, 7, 0)
    specs = specs_of(plan(mode=Mode.PULL, readers=3), [there])
    assert [one.queues for one in specs[0].readers] == [[(0, 100)]] * 3
    assert not any(one.follows for one in specs[0].readers)


def test_nothing_to_pull_is_said() -> None:
    with pytest.raises(CommandFailed, match="topic Orders holds no messages to pull"):
        specs_of(plan(mode=Mode.PULL, readers=3), [place(stored=0)])
