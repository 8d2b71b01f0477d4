"""`aerobee bench` against a real broker: each mode, short, judged by counts and not by time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aerobee import testing
from aerobee.cli.bench.bench_topics import PREFIX
from aerobee.cli.main import main
from aerobee.client.admin import Admin
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.statistics import QueueOffsets
from aerobee.testing import RunningBroker
from tests.ports import free_port

SHORT = ("--warm-up", "0", "--duration", "1", "--processes", "1", "--timeout", "30")


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with testing.broker(broker_name="bee", max_message_bytes=100_000) as broker:
        yield broker


class Outcome(NamedTuple):
    code: int
    out: str
    err: str
    document: dict[str, Any]


Bench = Callable[..., Outcome]


@pytest.fixture
def bench(running: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Run `aerobee bench` with the result in a file."""

    def run(*arguments: str) -> Outcome:
        file = tmp_path / "result.json"
        own = ("-n", running.name_server, "--json", str(file))
        code = main(["bench", *arguments, *SHORT, *own])
        text = file.read_text() if file.exists() else "{}"
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err, json.loads(text))

    return run


def topics(running: RunningBroker) -> list[str]:
    async def ask() -> list[str]:
        async with Admin(running.name_server) as admin:
            return await admin.topics()

    return asyncio.run(ask())


def offsets(running: RunningBroker, topic: str) -> dict[MessageQueue, QueueOffsets]:
    async def ask() -> dict[MessageQueue, QueueOffsets]:
        async with Admin(running.name_server) as admin:
            return await admin.topic_stats(topic)

    return asyncio.run(ask())


def create(running: RunningBroker, topic: str, queues: int = 2) -> None:
    arguments = ["topic", "create", topic, "--queues", str(queues), "-n", running.name_server]
    # A machine whose disk is busy takes its time to make the table of topics durable.
    assert main([*arguments, "--timeout", "60"]) == 0


def totals(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = outcome.document["aerobee"]["totals"]
    return found


def check_clean(running: RunningBroker, outcome: Outcome) -> None:
    """All went well, and nothing is left behind."""
    assert outcome.code == 0, outcome.err
    assert outcome.document["aerobee"]["failures"] == []
    assert "is deleted; the log keeps its messages" in outcome.err
    assert [name for name in topics(running) if name.startswith(PREFIX)] == []


def test_a_closed_loop_of_sends_stores_what_was_acknowledged(
    bench: Bench, running: RunningBroker
) -> None:
    outcome = bench("send", "--connections", "4", "--in-flight", "8")
    check_clean(running, outcome)
    found = totals(outcome)
    assert found["acknowledged"] > 0
    assert found["sent"] == found["acknowledged"] == found["stored"]
    assert (found["failed"], found["unanswered"], found["received"]) == (0, 0, 0)
    own = outcome.document["aerobee"]
    assert own["brokers"]["bee"] == {
        "address": running.broker,
        "version": "V4_9_8",
        "flushDiskType": "ASYNC_FLUSH",
        "brokerRole": "ASYNC_MASTER",
    }
    assert own["machine"]["cores"] == os.cpu_count()
    assert sum(outcome.document["publishRate"]) > 0
    assert outcome.document["aggregatedPublishLatency50pct"] > 0
    assert outcome.document["aggregatedPublishDelayLatencyMax"] == 0
    assert "MESSAGES/S" in outcome.out
    assert "publish" in outcome.out
    assert "broker bee at" in outcome.err
    assert "closed loop, 8 in flight" in outcome.err


def test_an_open_loop_sends_at_its_rate(bench: Bench, running: RunningBroker) -> None:
    outcome = bench("send", "--connections", "2", "--rate", "200", "--processes", "2")
    check_clean(running, outcome)
    found = totals(outcome)
    assert found["sent"] == found["acknowledged"] == found["stored"] > 0
    assert outcome.document["aerobee"]["loop"] == "open"
    assert outcome.document["aggregatedPublishDelayLatencyMax"] > 0
    assert "sent late by" in outcome.out


def test_batches_are_stored_whole(bench: Bench, running: RunningBroker) -> None:
    outcome = bench("batch", "--batch", "10", "--size", "100", "--connections", "2")
    check_clean(running, outcome)
    found = totals(outcome)
    assert found["acknowledged"] == found["stored"] > 0
    assert found["stored"] % 10 == 0


def test_pulls_read_what_was_stored_again_and_again(bench: Bench, running: RunningBroker) -> None:
    outcome = bench("pull", "--messages", "100", "--queues", "2", "--connections", "3")
    check_clean(running, outcome)
    found = totals(outcome)
    assert found["received"] > 0
    assert (found["sent"], found["stored"]) == (0, None)
    assert sum(outcome.document["consumeRate"]) > 0
    assert outcome.document["aggregatedPullLatencyMax"] > 0


def test_pulls_go_by_the_clock_too(bench: Bench, running: RunningBroker) -> None:
    outcome = bench("pull", "--messages", "100", "--connections", "1", "--rate", "50")
    check_clean(running, outcome)
    assert totals(outcome)["received"] > 0


def test_end_to_end_every_subscription_gets_every_message(
    bench: Bench, running: RunningBroker
) -> None:
    outcome = bench(
        *("e2e", "--connections", "2", "--subscriptions", "2", "--consumers", "2"),
        *("--rate", "300", "--queues", "3"),
    )
    check_clean(running, outcome)
    found = totals(outcome)
    assert found["received"] == 2 * found["acknowledged"] == 2 * found["stored"] > 0
    assert found["undelivered"] == 0
    assert outcome.document["aggregatedEndToEndLatency50pct"] > 0
    assert "end to end" in outcome.out


def test_a_workload_file_is_run(bench: Bench, running: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "body.data").write_bytes(bytes(range(100)))
    file = tmp_path / "workload.yaml"
    file.write_text(
        "name: two topics\ntopics: 2\npartitionsPerTopic: 3\nmessageSize: 100\n"
        "payloadFile: body.data\nkeyDistributor: KEY_ROUND_ROBIN\nsubscriptionsPerTopic: 1\n"
        "consumerPerSubscription: 2\nproducersPerTopic: 2\nproducerRate: 300\n"
        "consumerBacklogSizeGB: 0\ntestDurationMinutes: 15\n"
    )
    outcome = bench("workload", str(file))
    check_clean(running, outcome)
    result = outcome.document
    assert (result["workload"], result["topics"], result["partitions"]) == ("two topics", 2, 3)
    assert (result["producersPerTopic"], result["consumersPerTopic"]) == (2, 2)
    found = totals(outcome)
    assert found["received"] == found["acknowledged"] == found["stored"] > 0


def test_what_is_sent_can_be_read_by_others(bench: Bench, running: RunningBroker) -> None:
    create(running, "Kept")
    outcome = bench("send", "--topic", "Kept", "--size", "50", "--seed", "3", "--connections", "1")
    assert outcome.code == 0, outcome.err
    stored = sum(one.max_offset for one in offsets(running, "Kept").values())
    assert stored == totals(outcome)["stored"] == totals(outcome)["acknowledged"]


def test_a_topic_of_somebody_is_never_deleted(bench: Bench, running: RunningBroker) -> None:
    create(running, "Mine", 3)
    assert bench("send", "--topic", "Mine").code == 0
    outcome = bench("send", "--topic", "Unmade", "--queues", "5")
    assert "topic Unmade was not there: made with 5 queues on each broker" in outcome.err
    assert "deleted" not in outcome.err
    assert {"Mine", "Unmade"} <= {*topics(running)}
    assert (len(offsets(running, "Mine")), len(offsets(running, "Unmade"))) == (3, 5)


@pytest.mark.parametrize(
    ("mode", "name", "why"),
    [("pull", "Nothing", "a pull needs messages"), ("send", "%RETRY%x", "those of groups")],
)
def test_what_could_not_be_meant_makes_no_topic(
    bench: Bench, running: RunningBroker, mode: str, name: str, why: str
) -> None:
    outcome = bench(mode, "--topic", name)
    assert (outcome.code, why in outcome.err) == (1, True), outcome.err
    assert name not in topics(running)


def test_keep_keeps_the_topic(bench: Bench, running: RunningBroker) -> None:
    outcome = bench("batch", "--keep", "--connections", "1")
    [name] = [name for name in topics(running) if name.startswith(PREFIX)]
    assert f"topic {name} is kept" in outcome.err
    assert main(["topic", "delete", name, "--yes", "-n", running.name_server]) == 0


def test_refusals_are_shown_with_name_and_remark(bench: Bench, running: RunningBroker) -> None:
    outcome = bench("send", "--size", "200000", "--connections", "1")
    assert outcome.code == 1
    [failure] = outcome.document["aerobee"]["failures"]
    assert failure["code"] == "MESSAGE_ILLEGAL"
    assert failure["requests"] == totals(outcome)["failed"] == totals(outcome)["sent"] > 0
    assert failure["firstRemark"]
    assert totals(outcome)["stored"] == 0
    assert "MESSAGE_ILLEGAL" in outcome.out
    assert [name for name in topics(running) if name.startswith(PREFIX)] == []


def test_json_without_a_file_is_printed(
    running: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "send", *SHORT, "-n", running.name_server, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["aerobee"]["mode"] == "send"


def test_an_empty_topic_cannot_be_pulled(
    bench: Bench, running: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    create(running, "Empty")
    capsys.readouterr()
    outcome = bench("pull", "--topic", "Empty")
    assert outcome.code == 1
    assert "topic Empty holds no messages to pull" in outcome.err


def test_what_cannot_be_written_or_reached_is_said_before_anything(
    bench: Bench, running: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = topics(running)
    outcome = bench("send", "--plot", str(tmp_path / "nowhere" / "x.svg"))
    assert (outcome.code, "in a folder that is there" in outcome.err) == (2, True)
    outcome = bench("send", "--broker", "wasp")
    assert (outcome.code, outcome.err) == (1, "aerobee: there is no broker wasp: there is bee\n")
    assert topics(running) == before
    assert main(["bench", "send", *SHORT, "-n", f"127.0.0.1:{free_port()}"]) == 3
    assert "is a broker running?" in capsys.readouterr().err


def test_a_broker_that_goes_away_leaves_the_figures_so_far(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    with testing.broker(broker_name="gone") as broker:
        words = ("--warm-up", "0", "--duration", "1h", "--timeout", "1", "--json", str(file))
        process = subprocess.Popen(
            [sys.executable, "-m", "aerobee.cli", "bench", "e2e", *words, "-n", broker.name_server],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for text in process.stderr:
            if " s, publish " in text:
                break
    for text in process.stderr:
        if ", failed " in text:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "what the brokers hold of it is not known" in err
    assert "was not deleted" in err
    assert "publish" in out
    result = json.loads(file.read_text())["aerobee"]
    assert result["totals"]["stored"] is None
    assert result["totals"]["acknowledged"] > 0
    failed = {failure["code"] for failure in result["failures"]}
    assert "CONNECTION_LOST" in failed


def test_ctrl_c_ends_it_with_what_there_is(running: RunningBroker, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    words = ("--warm-up", "0", "--duration", "1h", "--json", str(file), "-n", running.name_server)
    process = subprocess.Popen(
        [sys.executable, "-m", "aerobee.cli", "bench", "send", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for text in process.stderr:
        if " s, publish " in text:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "publish" in out
    result = json.loads(file.read_text())
    assert result["aerobee"]["interrupted"] is True
    assert result["aerobee"]["totals"]["stored"] >= result["aerobee"]["totals"]["acknowledged"] > 0
    assert [name for name in topics(running) if name.startswith(PREFIX)] == []
