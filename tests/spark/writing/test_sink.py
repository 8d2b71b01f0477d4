"""Writes by real Spark into the real daemon: each row once, whatever fails in between."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.options import ClientOptions
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.sink.write_plan import SinkPlanError, plan_write
from tests.interop.brokers import Broker, OurBroker, SecuredJavaBroker
from tests.interop.kit import require as require_peer
from tests.interop.processes import wait_until
from tests.spark.conftest import require
from tests.spark.kit import VERSIONS, Driver, SparkFailed
from tests.spark.messages import new_topic
from tests.spark.writing.sinks import (
    FILES,
    LINES,
    files_of,
    found,
    messages,
    sink,
    tasks,
    write_batch,
    write_streams,
)
from tests.tls import CERTIFICATE, STRANGER
from tests.unit.pipeline.sink.test_sink import fields

ROWS = Counter(f"row-{n}" for n in range(2000))
LONG_S = 200.0


class Mortal:
    """A driver that tests may kill, and whose tasks are tried four times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made: list[Driver] = []

    @property
    def driver(self) -> Driver:
        """The living driver, or a new driver."""
        if not self.made or not self.made[-1].child.running:
            require(VERSIONS[0])
            folder = self._folder / f"driver-{len(self.made)}"
            self.made.append(Driver(VERSIONS[0], folder, master="local[4,4]"))
        return self.made[-1]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    made = Mortal(tmp_path_factory.mktemp("mortal"))
    yield made
    for driver in made.made:
        driver.kill()


class Stream:
    """A query over a folder of text files, into a new topic."""

    def __init__(self, broker: Broker, tmp_path: Path, files: int = FILES, **options: str) -> None:
        self.broker = broker
        self.topic = new_topic(broker, 4)
        self.marks = tmp_path / "marks"
        self.marks.mkdir()
        self.folder = tmp_path / "in"
        self.lines = files_of(self.folder, files)
        self._query: dict[str, Any] = {
            "options": sink(broker, self.topic, **options),
            "checkpoint": str(tmp_path / "check"),
        }

    def run(self, driver: Driver, trouble: str = "", **given: Any) -> dict[str, Any]:
        """To its end; its id and the numbers of its batches."""
        more = given.pop("options", {})
        query = self._query | {"trouble": trouble, "options": self._query["options"] | more}
        if given.get("mode") == "complete":  # a plan of its own, with a state
            query["checkpoint"] += "-complete"
        return driver.run(  # type: ignore[no-any-return]
            write_streams, folder=str(self.folder), queries={"q": query}, marks=str(self.marks),
            timeout_s=LONG_S, **given,
        )["q"]  # fmt: skip

    def found(self) -> Counter[str]:
        return found(self.broker, self.topic)


# --- what is written ----------------------------------------------------------------------------


def test_a_batch_write_arrives(driver: Driver, our_broker: Broker) -> None:
    topic = new_topic(our_broker, 4)
    columns = (
        "text AS body; 'tag' AS tags; array('k', text) AS keys; map('a', text) AS properties; "
        "cast(id AS string) AS shardingKey"
    )
    driver.run(write_batch, options=sink(our_broker, topic), count=2000, columns=columns)
    read = messages(our_broker, topic)
    assert Counter(message.body.decode() for message in read) == ROWS
    assert {message.tags for message in read} == {"tag"}
    assert all(message.keys == ("k", message.body.decode()) for message in read)
    assert all(message.properties["a"] == message.body.decode() for message in read)
    assert len({message.properties["SPARK_ID"] for message in read}) == 2000
    assert len({message.queue for message in read}) == 4


def test_a_stream_arrives_once_under_its_query_and_batch_trap_11(
    driver: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(our_broker, tmp_path)
    first = stream.run(driver)
    assert len(first["batches"]) >= FILES
    ids = [
        message.properties["SPARK_ID"].split("/") for message in messages(our_broker, stream.topic)
    ]
    assert {query for query, *_ in ids} == {first["id"]}
    assert {int(batch) for _, batch, *_ in ids} == set(range(FILES))
    assert stream.run(driver)["id"] == first["id"]
    assert stream.found() == stream.lines


def test_a_job_that_is_run_again_writes_once(newest: Driver, our_broker: Broker) -> None:
    topic = new_topic(our_broker, 4)
    options = sink(our_broker, topic, jobId=f"job-{topic}")
    for _ in range(2):
        newest.run(write_batch, options=options, count=2000, columns="text AS body")
    assert found(our_broker, topic) == ROWS


def test_delayed_rows_arrive_later(newest: Driver, our_broker: Broker) -> None:
    topic = new_topic(our_broker, 4)
    options = sink(our_broker, topic, jobId=f"job-{topic}")
    columns = "text AS body; if(id % 2 = 0, 1, null) AS delayTimeLevel"
    newest.run(write_batch, options=options, count=200, columns=columns)
    wait_until(lambda: found(our_broker, topic).total() >= 200, 60, "all rows")
    read = messages(our_broker, topic)
    assert Counter(message.body.decode() for message in read) == Counter(list(ROWS)[:200])
    waited = [message.properties.get("DELAY") for message in read]
    assert Counter(waited) == {"1": 100, None: 100}


# --- what cannot be written ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "columns", "mode", "reason"),
    [
        ({}, "text AS body", "overwrite", 'use .mode."append".'),
        ({}, "text AS body", "", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ({"topik": "x"}, "text AS body", "append", "unknown option 'topik'; did you mean 'topic'"),
        ({}, "text AS value", "append", "column 'value' is Kafka's: call it body"),
        ({}, "text AS tags", "append", "column body is missing"),
        ({}, "id AS body", "append", "column body must be binary or string, it is bigint"),
        ({}, "text AS body; id AS deliverTimeMs", "append", "use the column delayTimeLevel"),
        ({"nameServer": "127.0.0.1:1", "retryTimeoutMs": "300"}, "text AS body", "append",
         "127.0.0.1:1"),
        ({}, "if(id = 3, null, text) AS body", "append", "row 3 of its partition.*body is null"),
        ({}, "if(id = 3, repeat('x', 5000000), text) AS body", "append",
         "row 3 of its partition.*5000000 bytes, at most"),
        ({"jobId": None}, "if(id = 3, repeat('x', 5000000), text) AS body", "append",
         "row 3 of the partition.*5000000"),
    ],
    ids=["overwrite", "no mode (trap 12)", "option", "column", "no body", "type", "time",
         "nobody there", "null", "too large", "too large, unstaged"],
)  # fmt: skip
def test_what_cannot_be_written_is_told(
    newest: Driver,
    our_broker: Broker,
    more: dict[str, str | None],
    columns: str,
    mode: str,
    reason: str,
) -> None:
    topic = new_topic(our_broker)
    given = sink(our_broker, topic, jobId=f"job-{topic}") | more
    options = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(SparkFailed, match=reason):
        newest.run(write_batch, options=options, count=20, columns=columns, mode=mode)
    if options.get("jobId"):
        assert found(our_broker, topic) == Counter()


def test_a_stream_goes_on_from_its_checkpoint_after_what_it_cannot_write(
    newest: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(our_broker, tmp_path)
    with pytest.raises(SparkFailed, match=r'outputMode complete.*"append".*from foreachBatch'):
        stream.run(newest, mode="complete")
    bad = "file-1-7"
    for body, reason in [
        (f"if(value = '{bad}', null, value)", "body is null"),
        (f"if(value = '{bad}', repeat('x', 5000000), value)", "5000000 bytes"),
    ]:
        with pytest.raises(SparkFailed, match=f"row .* of its partition.*{reason}"):
            stream.run(newest, body=body)
    away = {"nameServer": "127.0.0.1:1", "retryTimeoutMs": "300"}
    with pytest.raises(SparkFailed, match=r"no name server answers \(127\.0\.0\.1:1\)"):
        stream.run(newest, options=away)
    assert stream.found() == Counter(
        {line: 1 for line in stream.lines if line.startswith("file-0-")}
    )
    stream.run(newest, where=f"value != '{bad}'")
    assert stream.found() == stream.lines - Counter([bad])


# --- what fails ---------------------------------------------------------------------------------


def test_a_failed_commit_whose_abort_is_given_all_messages_is_carried_out_trap_9(
    newest: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(our_broker, tmp_path)
    with pytest.raises(SparkFailed, match="a commit that fails at its end"):
        stream.run(newest, "uncommitted")
    assert (stream.marks / "uncommitted-abort").read_text() == "3 of 3"
    assert stream.found() == stream.lines  # batch 1 is the last one
    stream.run(newest)
    assert stream.found() == stream.lines


def test_a_driver_killed_in_each_phase_of_a_commit_writes_each_row_once(
    mortal: Mortal, tmp_path: Path
) -> None:
    """Phases of a batch's life; one of the queries is killed together with the broker, half its
    batch published. A query that begins again has the same numbers, first try included (trap
    10)."""
    phases = ("planned", "staged", "decided", "half", "published")
    marks = tmp_path / "marks"
    marks.mkdir()
    broker = OurBroker(tmp_path / "broker")
    broker.entry = ("-c", HALF_PUBLISHING.format(go=str(marks / "go")))
    broker.start()
    try:
        lines = files_of(tmp_path / "in")
        topics = {phase: new_topic(broker, 4) for phase in phases}
        queries = {
            phase: {"options": sink(broker, topic), "checkpoint": str(tmp_path / phase)}
            for phase, topic in topics.items()
        }
        troubled = {phase: query | {"trouble": phase} for phase, query in queries.items()}
        driver = mortal.driver
        given = {"folder": str(tmp_path / "in"), "queries": troubled, "marks": str(marks)}
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(driver.run, write_streams, timeout_s=LONG_S, **given)
            try:
                for phase in phases:
                    mark = marks / phase
                    wait_until(lambda mark=mark: mark.exists() or running.done(), LONG_S, phase)
                    assert not running.done() or running.result()
                # Rows that another batch still publishes would be taken for the few rows of this
                # batch.
                for phase, files in (("decided", 2), ("half", 1)):
                    wait_until(
                        lambda topic=topics[phase], rows=files * LINES: (
                            found(broker, topic).total() == rows
                        ),
                        LONG_S,
                        f"all rows of {phase}",
                    )
                (marks / "go").touch()
                wait_until(lambda: found(broker, topics["half"]).total() > LINES, LONG_S, "a row")
                broker.kill()
            finally:
                driver.kill()
            assert running.exception() is not None
        broker.entry = OurBroker.entry
        broker.start()
        further = re.compile(r'published further.*"rows": (\d+), "published": (\d+)')
        said = broker.root / "serve.log"  # written by a thread of the broker's
        wait_until(lambda: further.search(said.read_text()) is not None, 30, "the broker says so")
        ((rows, done),) = further.findall(said.read_text())
        assert 0 < int(done) < int(rows)

        again = {phase: query | {"trouble": f"no-{phase}"} for phase, query in queries.items()}
        mortal.driver.run(write_streams, timeout_s=LONG_S, **given | {"queries": again})
        for phase, topic in topics.items():
            assert found(broker, topic) == lines, phase
        first, second = tasks(marks, "staged", 1), tasks(marks, "no-staged", 1)
        assert [note[:4] for note in first] == [note[:4] for note in second]
        assert not _stages(first) & _stages(second)
    finally:
        broker.kill()


# Each row a slice; and only a few more, from when a file is there.
HALF_PUBLISHING = """
import os
from aerobee.broker.staging import publish as stage_publish
from aerobee.cli.main import main
stage_publish._SLICE_ROWS = 1
real = stage_publish.Publisher._advance
left = 4
def advance(self, intent):
    global left
    if not left:
        self.stop()
        return False
    done = real(self, intent)
    left -= os.path.exists({go!r})
    return done
stage_publish.Publisher._advance = advance
main()
"""


def _stages(notes: list[list[Any]]) -> set[str]:
    return {stage for *_, stages in notes for stage in stages}


def test_ten_failed_tasks_leave_nothing(mortal: Mortal, our_broker: Broker, tmp_path: Path) -> None:
    stream = Stream(our_broker, tmp_path, 3)
    stream.run(mortal.driver, "failing")
    assert len(list(stream.marks.glob("failed-*"))) == 3 * 3
    assert stream.found() == stream.lines
    topic = new_topic(our_broker, 4)
    options = sink(our_broker, topic, jobId=f"job-{topic}")
    mortal.driver.run(write_batch, options=options, count=2000, columns="text AS body", fail=True)
    assert found(our_broker, topic) == ROWS  # four more tasks


def test_a_broker_that_is_killed_again_and_again_gets_each_row_once(
    newest: Driver, new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = new_broker().start()
    stream = Stream(broker, tmp_path, 6, retryTimeoutMs="120000")
    over = threading.Event()
    kills = 0

    def kill_now_and_then() -> None:
        nonlocal kills
        # The plan is made: a plan needs a registered broker. Kills come soon from then on, so that
        # a quick query does not escape; then ever later, so that a slow query ends.
        wait_until(lambda: stream.found().total() > 0 or over.is_set(), LONG_S, "a row")
        while not over.wait(0.3 * (kills + 1)):
            broker.kill()
            broker.start()
            kills += 1

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        stream.run(newest)
    finally:
        over.set()
        killer.join()
    assert stream.found() == stream.lines
    assert kills >= 2


# --- into RocketMQ's own broker: at least once --------------------------------------------------


def test_writes_to_rocketmq_arrive_at_least_once(
    mortal: Mortal, java_broker: Broker, tmp_path: Path
) -> None:
    driver = mortal.driver
    topic = new_topic(java_broker, 4)
    driver.run(write_batch, options=sink(java_broker, topic), count=2000, columns="text AS body")
    assert found(java_broker, topic) == ROWS
    options = sink(java_broker, topic, jobId="j", guarantee="effectively-once")
    with pytest.raises(SparkFailed, match="does not stage"):
        driver.run(write_batch, options=options, count=1, columns="text AS body")

    stream = Stream(java_broker, tmp_path)
    stream.run(driver, "failing")
    read = messages(java_broker, stream.topic)
    assert len(read) > stream.lines.total()
    once = {message.properties["SPARK_ID"]: message.body.decode() for message in read}
    assert Counter(once.values()) == stream.lines  # what a consumer has that drops repeats
    said = driver.child.log.read_text(errors="replace")
    assert "does not stage batches: messages are written at least once" in said


@pytest.fixture(scope="module")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredJavaBroker]:
    require_peer("java-broker")
    running = SecuredJavaBroker(tmp_path_factory.mktemp("secured-broker"))
    running.start()
    yield running
    running.kill()


@pytest.mark.filterwarnings("ignore:topic .* is on no broker")
def test_writes_are_signed_and_go_over_tls(
    newest: Driver, secured_broker: SecuredJavaBroker, tmp_path: Path
) -> None:
    keys = {"accessKey": secured_broker.access_key, "secretKey": secured_broker.secret_key}
    tls = {"useTls": "true", "trustStore": str(CERTIFICATE)}
    options = sink(secured_broker, "Signed") | keys | tls
    for more, reason in [
        ({"secretKey": "wrong-hidden-key"}, "Check signature failed"),
        ({"trustStore": str(STRANGER)}, "certificate is not trusted"),
        ({"trustStore": "/no/such.pem"}, "option trustStore: '/no/such.pem'.*No such file"),
        ({"accessKey": None, "secretKey": None}, "No accessKey is configured"),
    ]:
        given = {name: value for name, value in (options | more).items() if value is not None}
        for streaming in (True, False):
            with pytest.raises((SinkPlanError, OptionError), match=reason) as refused:
                plan_write(given, fields(body="string"), streaming=streaming)
            assert "hidden-key" not in str(refused.value)
    newest.run(write_batch, options=options, count=2000, columns="text AS body")
    lines = files_of(tmp_path / "in", 1)
    query = {"options": options, "checkpoint": str(tmp_path / "check")}
    told = newest.run(write_streams, folder=str(tmp_path / "in"), queries={"q": query})
    assert "WriteToMicroBatchDataSource" in told["q"]["plan"]
    assert "hidden-key" not in told["q"]["plan"]
    read = messages(secured_broker, "Signed", ClientOptions(
        access_key=keys["accessKey"], secret_key=keys["secretKey"], use_tls=True,
        trust_store=str(CERTIFICATE)))  # fmt: skip
    assert Counter(message.body.decode() for message in read) == ROWS + lines
    assert "hidden-key" not in newest.child.log.read_text(errors="replace")
