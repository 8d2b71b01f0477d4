"""The worked example of docs/pipeline.md, run as it stands there and killed in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aerobee.client.message import Message
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until
from tests.spark.kit import ROOT, Driver, python_of, quick
from tests.spark.messages import send_messages

SHOPS = ("north", "south", "east")
ORDERS = 480


def program() -> str:
    page = (ROOT / "docs" / "pipeline.md").read_text()
    section = page.partition("\n## Worked example")[2]
    found: list[str] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return found[0]


@contextmanager
def running(
    script: Path, version: str, broker: Broker, folder: Path
) -> Iterator[subprocess.Popen[str]]:
    """The program; with all that it has started it is killed at the end."""
    python = str(python_of(version))
    environ = (
        os.environ
        | quick(version)
        | {
            "PYSPARK_PYTHON": python,
            "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false "
            "--conf spark.sql.shuffle.partitions=2 pyspark-shell",
        }
    )
    program = subprocess.Popen(
        [python, str(script), broker.name_server, str(folder)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=(folder / "log").open("a"),
        text=True,
        start_new_session=True,
    )
    try:
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def totals(spark: Any, folder: str, name_server: str) -> dict[str, list[Any]]:
    """The rows in Parquet, and the bodies in the topic."""
    columns = ("shop", "orders", "cents", "batch")
    rows = [tuple(row) for row in spark.read.parquet(f"{folder}/totals").select(*columns).collect()]
    options = {"nameServer": name_server, "topic": "order-totals"}
    sent = spark.read.format("rocketmq").options(**options).load()
    bodies = [row[0] for row in sent.selectExpr("cast(body as string)").collect()]
    return {"rows": rows, "bodies": bodies}


def test_the_worked_example_counts_each_order_once_over_a_kill(
    driver: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    our_broker.create_topic("orders", 2)
    our_broker.create_topic("order-totals", 2)
    wanted: Counter[str] = Counter()
    for queue in range(2):
        messages = []
        for number in range(queue, ORDERS, 2):
            shop = SHOPS[number % 3]
            wanted[shop] += number
            body = json.dumps({"shop": shop, "cents": number}).encode()
            messages.append(Message("orders", body))
        send_messages(our_broker, messages, queue)
    script = tmp_path / "orders.py"
    script.write_text(program())
    # 4.0 does not tell where a batch starts, and so reads all in one.
    is_split = driver.version != "4.0"
    amid = tmp_path / "totals" / f"batch={1 if is_split else 0}"
    with running(script, driver.version, our_broker, tmp_path) as doomed:
        wait_until(
            lambda: amid.exists() or doomed.poll() is not None,
            300,
            "a batch that is under way",
            0.01,
        )
    with running(script, driver.version, our_broker, tmp_path) as ended:
        printed, _ = ended.communicate(timeout=300)
    assert ended.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    assert json.loads(printed.splitlines()[-1]) == wanted
    found = driver.run(totals, folder=str(tmp_path), name_server=our_broker.name_server)
    batches = {row[3] for row in found["rows"]}
    assert len(batches) >= 3 if is_split else batches == {0}
    # Each row of each batch is one message, whatever was killed.
    names = ("shop", "orders", "cents", "batch")
    messages_of = [tuple(json.loads(body)[name] for name in names) for body in found["bodies"]]
    assert sorted(messages_of) == sorted(found["rows"])
