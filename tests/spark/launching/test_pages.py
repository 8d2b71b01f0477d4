"""Every program and command that the pages about Spark show is run, or is in a list that says where
it is run else, or why it can only be looked at."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aerobee.client.message import Message
from aerobee.pipeline.jobs.arguments import build_parser as jobs_parser
from aerobee.pipeline.launch.words import split
from tests import campaign
from tests.interop.brokers import Broker
from tests.ports import free_port
from tests.spark.kit import ROOT, VERSIONS, Driver, python_of
from tests.spark.launching.pages import GUIDE, PAGES, Shown, shown
from tests.spark.launching.test_cluster import spark_home
from tests.spark.launching.test_launch import environ, installed
from tests.spark.messages import send_messages

#: Commands that other tests run as they stand: a part of the command, and the test.
ELSEWHERE = {
    'jobs.submit --file)" audit /mnt/store': "test_cluster.py",
    "--master spark://master:7077 --conf": "test_cluster.py",
    "spark-pipeline.yml": "test_declarative.py",
    "cd docs/examples/declarative": "test_declarative.py",
    "python -m aerobee.pipeline.jobs.submit --file": "test_cluster.py",
    "pip wheel --no-deps": "conftest.py",
    "--format delta": "test_lake.py",
    "--format iceberg": "test_lake.py",
}
#: Looked at, and why not run.
LOOKED_AT = {
    "--master yarn": "needs a cluster with YARN",
    "--master k8s://": "needs a cluster with Kubernetes",
    "pip install": "downloads, which only whoever types it may want",
    "make pyspark": "the same",
}
#: No code: the leavings of a run, its output, and a unit of systemd with a command of the page.
NO_CODE = ("/archive/messages/topic=", "[PYTHON_DATA_SOURCE_ERROR]", "[Service]")
#: Lines that a reader imagines before a program.
BEFORE = {"docs/spark-sink.md": "orders = spark.sql(\"SELECT 'ada' AS customer, 5 AS cents\")\n"}
#: Pages on which nothing is to be typed.
TABLES_ALONE = {"docs/spark-moving.md"}
EXAMPLES = {
    "produce.py": "contract/programs/test_examples.py",
    "consume.py": "contract/programs/test_examples.py",
    "transact.py": "contract/programs/test_examples.py",
    "change_data.py": "spark/writing/test_change_data.py",
    "declarative": "spark/writing/test_declarative.py",
}
TOPICS = ("orders", "returns", "Orders", "orders-again", "order-totals", "customer-changes")
COUNT = 60


def is_in(names: dict[str, str], one: Shown) -> str | None:
    return next((name for name in names if name in one.text), None)


def commands(*kinds: str) -> list[Shown]:
    """The commands of `aerobee pipeline`, kind by kind, that are run here."""
    found = []
    for one in shown():
        words = one.text.split()
        ours = one.kind == "command" and words[0].endswith("aerobee") and words[1] == "pipeline"
        if ours and one.page != GUIDE and is_in(ELSEWHERE, one) is None and words[2] in kinds:
            found.append(one)
    return found


LAUNCHES = commands("shell", "submit")
JOBS = commands("audit", "rebuild", "archive", "replay", "traffic", "retention", "dlq")
STREAMS = commands("stream")
PROGRAMS = [one for one in shown() if one.kind == "python" and "sys.argv" not in one.text]


def test_everything_that_is_shown_is_run_or_its_reason_is_said() -> None:
    every = shown()
    assert {one.page for one in every} == {*PAGES, GUIDE} - TABLES_ALONE
    run = {*LAUNCHES, *JOBS, *STREAMS, *PROGRAMS}
    left = [one for one in every if one not in run and is_in(ELSEWHERE | LOOKED_AT, one) is None]
    # The guide's commands are those of the pages, with the place that its reader has them in.
    left = [one for one in left if one.page != GUIDE]
    programs = [one for one in left if one.kind == "python"]
    assert [one.text.count("trigger(availableNow=True)") for one in programs] == [1]  # test_example
    others = [one for one in left if one.kind != "python"]
    assert [one for one in others if not one.text.startswith(NO_CODE)] == []
    for name in (*ELSEWHERE, *LOOKED_AT):
        assert [one for one in every if name in one.text], f"nothing is like {name}"
    assert len(JOBS) >= 9
    assert len(LAUNCHES) >= 5
    assert len(STREAMS) >= 2
    assert len(PROGRAMS) >= 6


def test_each_example_has_its_test() -> None:
    there = {path.name for path in (ROOT / "docs" / "examples").iterdir()} - {"__pycache__"}
    assert there == {*EXAMPLES}
    for name, test in EXAMPLES.items():
        assert name in (ROOT / "tests" / test).read_text()


class Place(NamedTuple):
    """A broker with some orders, and where the paths of the pages lie here."""

    broker: Broker
    folder: Path

    def here(self, text: str) -> str:
        """The text with addresses and paths that are there."""
        name_server, store = self.broker.name_server, str(self.broker.store)
        paths = ("/work/derived", "/archive/messages", "/tmp/traffic", "/data/", "/lake/")
        names = {
            "10.0.0.1:9876;10.0.0.2:9876": name_server,
            "10.0.0.1:9876": name_server,
            "127.0.0.1:9876": name_server,
            "port=9466": f"port={free_port()}",
            "/var/lib/aerobee/store": store,
            "/backup/store": store,
        } | {path: f"{self.folder}{path}" for path in paths}
        return re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], text)


@pytest.fixture
def place(new_broker: Callable[..., Broker], tmp_path: Path) -> Place:
    broker = new_broker().start()
    for topic in TOPICS:
        broker.create_topic(topic, 2)
    body = b'{"shop": "north", "cents": 5}'
    messages = [
        Message("orders", body, tags="paid", properties={"amount": str(number)})
        for number in range(COUNT)
    ]
    messages += [Message(topic, body) for topic in ("returns", "Orders")]
    messages.append(Message("customer-changes", b'{"op": "c", "after": {"id": 1, "name": "Ada"}}'))
    send_messages(broker, messages)
    return Place(broker, tmp_path)


def run_job_of(spark: Any, command: str) -> tuple[int, list[str]]:
    """A job as its command line has it, in the session that is there."""
    import shlex

    from aerobee.cli.arguments.parser import build_parser
    from aerobee.cli.printing.times import parse_time
    from aerobee.pipeline.jobs.run import run_job

    result = run_job(build_parser().parse_args(shlex.split(command)[1:]), parse_time, None, spark)
    return result.code, result.lines


def rows_of(spark: Any, program: str) -> dict[str, int]:
    """Runs a program; how many rows each frame has that it names, a stream up to now."""
    import tempfile

    from pyspark.sql import DataFrame

    names = {"spark": spark}
    exec(compile(program, "page", "exec"), names)
    found = {}
    for name, value in names.items():
        if not isinstance(value, DataFrame):
            continue
        if value.isStreaming:
            with tempfile.TemporaryDirectory() as folder:
                written = value.writeStream.format("noop").option("checkpointLocation", folder)
                query = written.trigger(availableNow=True).start()
                query.awaitTermination()
                found[name] = sum(one["numInputRows"] for one in query.recentProgress)
        else:
            found[name] = value.count()
    return found


def test_jobs_and_programs_of_the_pages_run_one_after_the_other(
    driver: Driver, place: Place
) -> None:
    for one in JOBS:
        code, lines = driver.run(run_job_of, command=place.here(one.text))
        assert code == 0, (one.text, lines)
        assert lines
    for number, one in enumerate(STREAMS):
        # Each writes to a table of its own; a stream that would go on ends with the messages there.
        text = place.here(one.text).replace("/lake/", f"/lake/{number}/")
        text += "" if "--available-now" in text else " --available-now"
        text += "" if " -n " in text else f" -n {place.broker.name_server}"
        code, lines = driver.run(run_job_of, command=text)
        assert code == 0, (text, lines)
    found: dict[str, int] = {}
    for one in PROGRAMS:
        text = one.text.strip()
        if text.startswith("."):
            # More options of a read.
            base = 'spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876")'
            text = f'filtered = ({base}.option("topic", "orders")\n{text}\n.load())'
        if "read_archive(" in text:
            text = text.replace("\nread_archive", "\narchived = read_archive")
            text = text.replace("date = '", "date >= '")
        found |= driver.run(rows_of, program=BEFORE.get(one.page, "") + place.here(text))
    assert found["filtered"] == COUNT - 10
    assert found["frame"] == 1
    assert found["orders"] == 2  # the guide's; one more was written by the page of the sink
    assert found["archived"] == COUNT
    assert found["stream"] == 0  # from now on


def test_shells_and_programs_of_the_pages_run(driver: Driver, place: Place) -> None:
    assert driver.answers()  # PySpark is there
    command = installed(place.folder, driver.version)
    (place.folder / "docs").symlink_to(ROOT / "docs")
    (place.folder / "program.py").write_text("print(spark.range(5).count())\n")
    worked = [one.text for one in shown() if one.kind == "python" and "sys.argv" in one.text]
    (place.folder / "orders.py").write_text(worked[0])
    path = f"{command.parent}:/usr/local/bin:/usr/bin:/bin"
    for one in campaign.draw("page commands", LAUNCHES):
        done = subprocess.run(
            ["bash", "-c", place.here(one.text)],
            env=environ(driver.version, place.folder) | {"PATH": path}, cwd=place.folder,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (one.text, done.stdout, done.stderr)
        wanted = {"program.py": "5\n", "orders.py": '{"north": '}
        assert [
            name for name in wanted if name in one.text and wanted[name] not in done.stdout
        ] == []


#: Settings that are named by the user in part.
_NAMED_IN_PART = (
    r"spark\.executorEnv\.\w+",
    r"spark\.kubernetes\.(driver|executor)\.volumes\.persistentVolumeClaim\.\w+"
    r"\.(options\.claimName|mount\.(path|readOnly))",
)


def settings_known(spark: Any, keys: list[str]) -> list[str]:
    """The keys that Spark has a definition of."""
    jvm = spark.sparkContext._jvm
    for name in ("internal.config.package$", "internal.config.Python$", "deploy.k8s.Config$"):
        jvm.java.lang.Class.forName(f"org.apache.spark.{name}")
    find = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
    return [key for key in keys if find(key) is not None]


def test_what_needs_a_cluster_is_looked_at(newest: Driver) -> None:
    """Its syntax, each option and setting of Spark, and the job that it asks for."""
    looked_at = [one for one in shown() if one.kind == "command" and "spark-submit " in one.text]
    assert len(looked_at) == 3
    told = subprocess.run(
        [str(spark_home() / "bin" / "spark-submit"), "--help"], capture_output=True, text=True,
        check=False, env=os.environ | {"PYSPARK_PYTHON": str(python_of(VERSIONS[0]))},
    )  # fmt: skip
    options = set(re.findall(r"(--[\w-]+)", told.stderr + told.stdout))
    for one in looked_at:
        assert subprocess.run(["bash", "-n", "-c", one.text], check=False).returncode == 0
        words = shlex.split(one.text)
        found = split(words[words.index("spark-submit") + 1 :], "submit")
        assert [name for name, _ in found.spark if name not in options] == []
        named = [str(value).partition("=")[0] for name, value in found.spark if name == "--conf"]
        keys = [key for key in named if not any(re.fullmatch(part, key) for part in _NAMED_IN_PART)]
        assert newest.run(settings_known, keys=keys) == keys
        assert jobs_parser().parse_args(found.arguments).job in ("audit", "archive")
