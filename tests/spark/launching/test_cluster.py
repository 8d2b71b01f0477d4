"""A job on a real cluster: a standalone master, two workers, and nothing of ours but the wheel."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.processes import wait_until
from tests.ports import free_port
from tests.spark.kit import ROOT, VERSIONS, Driver, python_of, quick_java
from tests.spark.launching.test_launch import environ as newcomers_environ
from tests.spark.launching.test_launch import installed
from tests.spark.messages import new_topic, send
from tests.spark.writing.sinks import files_of, found, sink, tasks, write_streams
from tests.unit.store.at_rest import audit_support as at

_VERSION = VERSIONS[0]


class Cluster:
    """Master and workers, each a process of its own; `url` is the master's."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.children: list[subprocess.Popen[bytes]] = []
        try:
            self._begin(workers)
        except BaseException:
            self.stop()
            raise

    def _begin(self, workers: int) -> None:
        folder = self.folder
        port, web = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self.children.append(
            self._start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port),
                        "--webui-port", str(web))
        )  # fmt: skip
        for number in range(workers):
            # Machines of their own, as far as Spark knows: no task has two tries on one.
            more = ["--host", f"127.0.0.{number + 1}", "--cores", "1", "--memory", "1g"]
            more += ["--webui-port", str(free_port()), "--work-dir", str(folder / f"work{number}")]
            self.children.append(self._start(f"worker{number}", "worker.Worker", *more, self.url))
        wait_until(self._has_workers(workers), 200, "the workers at the master")

    def _start(self, name: str, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("wb")
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        return subprocess.Popen(
            [*command, *arguments], stdout=log, stderr=log, env=environ(), cwd=self.folder
        )

    def _has_workers(self, count: int):  # type: ignore[no-untyped-def]
        log = self.folder / "master.log"
        return lambda: log.read_text(errors="replace").count("Registering worker") >= count

    def stop(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


def spark_home() -> Path:
    return next((python_of(_VERSION).parent.parent / "lib").glob("python3*/site-packages/pyspark"))


def environ() -> dict[str, str]:
    """Without anything of the working tree on the path, and without the wish for the compiled form:
    executors import from the wheel as an archive, which gives Python modules only."""
    left_out = ("PYTHONPATH", "AEROBEE_NATIVE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    python = str(python_of(_VERSION))
    return kept | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": quick_java(_VERSION),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }


@pytest.fixture(scope="module")
def cluster(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"), 2)
    yield running
    running.stop()


def test_a_job_runs_on_a_cluster_from_the_wheel_alone(
    cluster: Cluster, wheel: Path, tmp_path: Path
) -> None:
    root = at.make(tmp_path / "store")
    # The names that users' own files on an executor have must not be taken for ours.
    for name in ("config", "client", "store"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the wrong one')\n")
    target = shutil.copy(ROOT / "pipeline" / "jobs" / "submit.py", tmp_path)
    submit = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.url]
    conf = ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false",
            "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.cores.max=2"]  # fmt: skip
    job = [str(target), "audit", str(root), "--json", "--split-bytes", "4096", "-q"]
    done = subprocess.run(
        [*submit, *conf, "--py-files", str(wheel), *job],
        capture_output=True, text=True, env=environ(), cwd=tmp_path, timeout=500, check=False,
    )  # fmt: skip
    # spark-submit sends both outputs of a driver to its standard output.
    said = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert done.returncode == 0, "\n".join([done.stdout, *said])
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["records"], report["damage"]) == (at.QUEUES * at.PER_QUEUE + 4, 0)
    # Both workers had a part in it.
    assert all(list((cluster.folder / f"work{number}").glob("app-*")) for number in range(2))


PROGRAM = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("rocketmq").option("topic", sys.argv[1]).load()
print(sorted(row[0] for row in rows.selectExpr("string(body)").collect()))
print(sorted(set(
    spark.sparkContext.parallelize([0, 1], 2)
    .map(lambda _: __import__("aerobee").__file__.rpartition("/aerobee/")[0].rpartition("/")[2])
    .collect()
)))
"""


def test_submit_sends_its_modules_to_a_cluster_that_has_none(
    cluster: Cluster, our_broker: Broker, tmp_path: Path
) -> None:
    topic = new_topic(our_broker, queues=2)
    for queue in range(2):
        send(our_broker, topic, [b"%d" % queue], queue)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [installed(tmp_path, _VERSION), "pipeline", "submit", "--master", cluster.url]
    conf = {
        "spark.executor.memory": "512m", "spark.ui.enabled": "false", "spark.cores.max": "2",
        "spark.pyspark.python": str(python_of(_VERSION)), "spark.log.level": "FATAL",
    }  # fmt: skip
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    newcomer = newcomers_environ(_VERSION, tmp_path) | {"TMPDIR": str(scratch)}
    done = subprocess.run(
        [*command, "-n", our_broker.name_server, str(program), topic],
        capture_output=True, text=True, env=newcomer, cwd=tmp_path, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["['0', '1']", "['aerobee.zip']"], done.stderr
    assert done.returncode == 0
    assert not list(scratch.glob("aerobee-*"))


@pytest.mark.campaign
def test_speculative_tasks_leave_nothing_in_a_topic(
    cluster: Cluster, our_broker: Broker, new_driver: Callable[..., Driver], tmp_path: Path
) -> None:
    driver = new_driver(
        master=cluster.url,
        conf={
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.speculation": "true",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.interval": "50ms",
            "spark.speculation.minTaskRuntime": "50ms",
        },
    )
    lines = files_of(tmp_path / "in", 2)
    topic = new_topic(our_broker, 4)
    query = {"options": sink(our_broker, topic), "checkpoint": str(tmp_path / "check")}
    marks = tmp_path / "marks"
    marks.mkdir()
    driver.run(
        write_streams, folder=str(tmp_path / "in"), queries={"q": query | {"trouble": "slow"}},
        marks=str(marks), timeout_s=200,
    )  # fmt: skip
    for batch in range(2):
        assert (marks / f"slow-{batch}").exists()  # all was staged, and then it stood still
        others = [(note[2], note[3] > 0) for note in tasks(marks, "slow", batch)]
        assert (0, True) in others
        assert (0, False) not in others
    assert found(our_broker, topic) == lines


@pytest.mark.campaign
def test_a_worker_is_lost_while_it_reads_and_writes(
    our_broker: Broker, new_driver: Callable[..., Driver], tmp_path: Path
) -> None:
    """With executors that come and go; each message is in the other topic once."""
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster", 3)
    try:
        driver = new_driver(
            master=cluster.url,
            conf={
                "spark.executor.memory": "512m",
                "spark.executorEnv.PYTHONPATH": str(ROOT),
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.shuffleTracking.enabled": "true",
                "spark.dynamicAllocation.minExecutors": "2",
                "spark.dynamicAllocation.executorIdleTimeout": "5s",
            },
        )
        source, target = new_topic(our_broker, 3), new_topic(our_broker, 3)
        bodies = [b"%05d" % number for number in range(3 * PER_QUEUE)]
        for queue in range(3):
            send(our_broker, source, bodies[queue::3], queue, batch=100)
        options = {
            "nameServer": our_broker.name_server, "topic": source, "columns": "body",
            "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(PER_QUEUE // 2),
        }  # fmt: skip
        checkpoint = tmp_path / "checkpoint"
        driver.run(
            pass_on, options=options, sink=sink(our_broker, target), checkpoint=str(checkpoint)
        )
        committed = checkpoint / "commits"
        wait_until(lambda: len(list(committed.glob("[0-9]*"))) >= 1, 200, "the first batch")
        victim = next(child for child in cluster.children[1:] if executors_of(child.pid))
        lost = executors_of(victim.pid)
        victim.kill()
        for pid in lost:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: driver.run(is_read, messages=len(bodies)), 250, "all is passed on")
    finally:
        cluster.stop()
    assert found(our_broker, target) == Counter(body.decode() for body in bodies)


PER_QUEUE = 2_000


def pass_on(spark: Any, options: dict[str, str], sink: dict[str, str], checkpoint: str) -> None:
    """Starts a query from one topic into another."""
    spark.tests_query = (
        spark.readStream.format("rocketmq")
        .options(**options)
        .load()
        .writeStream.format("rocketmq")
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def is_read(spark: Any, messages: int) -> bool:
    """Whether all is committed; that the query has failed is an error."""
    query = spark.tests_query
    if query.exception() is not None:
        raise query.exception()
    ended = sum(progress.numInputRows for progress in query.recentProgress) >= messages
    if ended:
        query.processAllAvailable()
        query.stop()
    return ended


def executors_of(worker: int) -> list[int]:
    """The processes that a worker, by whichever of its threads, has started."""
    return [
        int(pid)
        for task in Path(f"/proc/{worker}/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]
