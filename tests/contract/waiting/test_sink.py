"""A write's tasks, commit and abort against a real broker, without Spark: each in a life of its
own, as Spark has them."""

from __future__ import annotations

import asyncio
import pickle
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import aerobee.testing
from aerobee.client.blocking_roles import PullConsumer
from aerobee.client.producing.staging import StageClient
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.sink import write_plan
from aerobee.pipeline.sink.rows import SinkRowError
from aerobee.pipeline.sink.send import SinkSendError
from aerobee.pipeline.sink.task import TaskResult, abort_write, commit_write, write_partition
from aerobee.pipeline.sink.write_plan import SinkPlan, SinkPlanError, is_job_done, plan_write
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.testing import RunningBroker
from tests.contract.conftest import Wire
from tests.unit.pipeline.sink.test_sink import fields

# The first message makes a topic here, which planning warns of.
pytestmark = pytest.mark.filterwarnings("ignore:topic .* is on no broker")


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with aerobee.testing.broker(max_message_bytes=1 << 20) as broker:
        yield broker


@pytest.fixture
def registered() -> Iterator[RunningBroker]:
    """A broker whose registration a test may change."""
    with aerobee.testing.broker() as broker:
        yield broker


def plan(running: RunningBroker, topic: str, *, streaming: bool = True, **options: str) -> SinkPlan:
    given = {"nameServer": running.name_server, "topic": topic, "retryTimeoutMs": "20000"}
    made = plan_write(given | options, fields(body="string", tags="string"), streaming=streaming)
    return pickle.loads(pickle.dumps(made))


def write(
    made: SinkPlan, batch: int, partition: int, bodies: Sequence[str], query: str = ""
) -> TaskResult:
    values = [(body, "t") for body in bodies]
    result = write_partition(made, query or str(made.options.topic), batch, partition, values)
    return pickle.loads(pickle.dumps(result))


def found(running: RunningBroker, topic: str) -> list[Any]:
    with PullConsumer(running.name_server, "reader") as consumer:
        messages = []
        for queue in consumer.queues(topic):
            offset = 0
            while (result := consumer.pull(queue, offset)).messages:
                messages += result.messages
                offset = result.next_offset
    return messages


def bodies(running: RunningBroker, topic: str) -> list[str]:
    return sorted(message.body.decode() for message in found(running, topic))


def numbered(mark: str, count: int) -> list[str]:
    return [f"{mark}{n:05d}" for n in range(count)]


def test_a_committed_batch_is_there_once(running: RunningBroker) -> None:
    made = plan(running, "Once", batchBytes="4096")
    rows = numbered("a", 2000)
    write(made, 0, 0, rows[:10])  # a try that failed after its last row
    results = [write(made, 0, n, rows[n::3]) for n in range(3)]
    write(made, 0, 2, rows[2::3])  # a speculative one
    commit_write(made, results)
    commit_write(made, results)
    abort_write(made, results)
    assert bodies(running, "Once") == rows
    ids = Counter(message.properties["SPARK_ID"] for message in found(running, "Once"))
    assert len(ids) == 2000
    assert "Once/0/2/665" in ids


def test_a_batch_that_was_run_again_counts_once(running: RunningBroker) -> None:
    made = plan(running, "Again")
    commit_write(made, [write(made, 4, 0, numbered("first", 10))])
    commit_write(made, [write(made, 4, 0, numbered("other", 7))])
    commit_write(made, [write(made, 5, 0, numbered("next", 3))])
    assert bodies(running, "Again") == sorted(numbered("first", 10) + numbered("next", 3))


def test_an_aborted_batch_is_not_there(running: RunningBroker) -> None:
    made = plan(running, "Aborted")
    commit_write(made, [write(made, 0, 0, ["kept"])])
    abort_write(made, [write(made, 1, 0, numbered("a", 10))])
    assert bodies(running, "Aborted") == ["kept"]


def test_a_job_that_runs_again_writes_nothing(running: RunningBroker) -> None:
    for mark in ("first", "second"):
        made = plan(running, "Job", streaming=False, jobId="nightly")
        assert made.query == "job.nightly"
        commit_write(made, [write(made, 0, 0, [mark], str(made.query))])
    assert bodies(running, "Job") == ["first"]


def test_a_job_is_done_once_it_is_committed(running: RunningBroker) -> None:
    given = {"nameServer": running.name_server, "topic": "Done", "retryTimeoutMs": "20000"}
    made = plan(running, "Done", streaming=False, jobId="monthly")
    results = [write(made, 0, 0, ["one"], str(made.query))]
    assert not is_job_done(given | {"jobId": "monthly"}), "staged is not done"
    commit_write(made, results)
    assert is_job_done(given | {"jobId": "monthly"})
    assert not is_job_done(given | {"jobId": "yearly"})
    assert not is_job_done(given), "a write without an id is done by nobody"


def test_a_job_is_not_done_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_plan, "_PLAN_TIMEOUT_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        assert not is_job_done({"nameServer": nobody, "topic": "Done", "jobId": "monthly"})


@pytest.mark.parametrize("options", [{"guarantee": "at-least-once"}, {"batchBytes": "2048"}])
def test_all_rows_arrive_without_staging(running: RunningBroker, options: dict[str, str]) -> None:
    topic = f"Plain{len(options['guarantee']) if 'guarantee' in options else 0}"
    made = plan(running, topic, streaming="guarantee" in options, **options)
    assert made.staged is None
    rows = numbered("a", 1500)
    commit_write(made, [write(made, 0, n, rows[n::2]) for n in range(2)])
    assert bodies(running, topic) == rows


@pytest.mark.parametrize("guarantee", ["effectively-once", "at-least-once"])
def test_a_message_that_is_too_large_is_named(running: RunningBroker, guarantee: str) -> None:
    made = plan(running, "Large", guarantee=guarantee)
    rows = ["x", "y" * 900_000, "z" * ((1 << 20) + 1), "w"]
    with pytest.raises((SinkRowError, SinkSendError), match=r"row 2 of .*'Large'") as refused:
        write(made, 0, 0, rows)
    assert str((1 << 20) + 1) in str(refused.value)
    commit_write(made, [write(made, 1, 0, rows[:2], guarantee)])
    assert sorted(len(body) for body in bodies(running, "Large"))[-1] == 900_000


def test_a_failed_task_leaves_nothing_staged(running: RunningBroker) -> None:
    made = plan(running, "Failing", batchBytes="1024")
    dropped: list[list[str]] = []
    real = StageClient.drop

    async def drop(self: StageClient, broker: str, query: str, batch: int, stages: Any) -> Any:
        decision = await real(self, broker, query, batch, stages)
        dropped.append(list(stages))
        return decision

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageClient, "drop", drop)
        with pytest.raises(SinkRowError, match="row 100 of"):
            write(made, 0, 0, [*numbered("a", 100), ""])
    assert [len(names) for names in dropped] == [1]


def test_a_server_that_is_none_is_told_at_planning() -> None:
    given = {"nameServer": "127.0.0.1:1", "topic": "T", "retryTimeoutMs": "100"}
    with pytest.raises(SinkPlanError, match=r"127\.0\.0\.1:1"):
        plan_write(given, fields(body="string"), streaming=True)


async def test_a_name_server_that_knows_no_broker_yet_is_waited_for(
    registered: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark plans each micro-batch anew, also in the moment between the start of a name server and
    the registration of its brokers."""
    name_server, broker = await Wire.to(registered.name_server), await Wire.to(registered.broker)
    settings = registered.settings
    identity = {
        "brokerName": settings.broker_name,
        "brokerAddr": registered.broker,
        "clusterName": settings.cluster_name,
        "brokerId": 0,
    }
    looked = threading.Event()
    real = StageClient._ask_brokers

    async def noted(client: StageClient) -> None:
        await real(client)
        if not client._addresses:
            looked.set()

    monkeypatch.setattr(StageClient, "_ask_brokers", noted)
    answer = await name_server.call(RequestCode.UNREGISTER_BROKER, identity)
    assert answer.code == ResponseCode.SUCCESS
    planning = asyncio.create_task(asyncio.to_thread(plan, registered, "Restarted"))
    await asyncio.to_thread(looked.wait, 10)
    # A topic that is made has the broker register it.
    made = {"topic": "Restarted", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1}
    made |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    await broker.call(RequestCode.UPDATE_AND_CREATE_TOPIC, made)
    assert (await planning).brokers == (settings.broker_name,)
    name_server.caller.close()
    broker.caller.close()


def test_a_topic_that_is_none_is_told_at_planning() -> None:
    with aerobee.testing.broker(auto_create_topic=False) as strict:
        given = {"nameServer": strict.name_server, "topic": "Nowhere", "retryTimeoutMs": "100"}
        wanted = "topic 'Nowhere' cannot be written.*aerobee topic create Nowhere"
        with pytest.raises(SinkPlanError, match=wanted):
            plan_write(given, fields(body="string"), streaming=True)


def test_a_topic_that_the_first_message_would_make_is_warned_of(
    running: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    made = plan(running, "Misspelt")
    assert re.search("'Misspelt' is on no broker.*topic create Misspelt", caplog.text)
    commit_write(made, [write(made, 0, 0, ["x"])])
    caplog.clear()
    plan(running, "Misspelt")
    assert "Misspelt" not in caplog.text


def test_effectively_once_is_refused_where_nobody_stages(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def none(_self: StageClient, _broker: str) -> None:
        return None

    monkeypatch.setattr(StageClient, "capability", none)
    with pytest.raises(OptionError, match="broker test-broker does not stage"):
        plan(running, "T", guarantee="effectively-once")
    assert plan(running, "T").staged is None
    assert "written at least once" in caplog.text
