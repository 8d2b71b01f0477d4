"""docs/examples/declarative: a declarative pipeline over topics, run twice as it stands there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests import campaign
from tests.interop.brokers import Broker
from tests.parts import begin_watch_anew
from tests.spark.conftest import require_connect
from tests.spark.kit import ROOT, VERSIONS, Driver
from tests.spark.launching.test_launch import environ, installed
from tests.spark.messages import new_topic, send

PROJECT = ROOT / "docs" / "examples" / "declarative"
DESCRIPTION, SETTINGS = "spark-pipeline.yml", "spark.properties"


def project(folder: Path, broker: Broker) -> Path:
    """A copy of the example that lies in `folder`, as a user makes one."""
    place = folder / "project"
    shutil.copytree(PROJECT, place)
    for name in (DESCRIPTION, SETTINGS):
        path = place / name
        text = path.read_text().replace("/data/orders", str(folder / "data"))
        path.write_text(text.replace("127.0.0.1:9876", broker.name_server))
    return place


def orders(numbers: range) -> list[bytes]:
    """Each of 300 more than the one before, so that some are large ones."""
    return [
        json.dumps({"id": one, "shop": f"shop-{one % 3}", "cents": one * 30_000}).encode()
        for one in numbers
    ]


def tables(spark: Any, folder: str) -> dict[str, list[list[Any]]]:
    """The rows in the tables' files."""
    found = {}
    for name in ("messages", "orders", "totals", "unreadable"):
        rows = spark.read.parquet(f"{folder}/tables/{name}")
        found[name] = sorted([list(row) for row in rows.drop("storeTimestamp").collect()], key=repr)
    return found


def bodies(spark: Any, name_server: str, topic: str) -> list[str]:
    """The bodies of all messages of a topic."""
    options = {"nameServer": name_server, "topic": topic}
    rows = spark.read.format("rocketmq").options(**options).load().selectExpr("string(body)")
    return sorted(row[0] for row in rows.collect())


def test_each_run_takes_what_is_new(newest: Driver, our_broker: Broker, tmp_path: Path) -> None:
    version = VERSIONS[0]
    require_connect(version)
    place = project(tmp_path, our_broker)
    source, sink = new_topic(our_broker), new_topic(our_broker)
    program = place / "transformations" / "orders.py"
    text = program.read_text()
    assert '"orders")' in text
    assert '"large-orders"' in text
    text = text.replace('"subscribe", "orders"', f'"subscribe", "{source}"')
    program.write_text(text.replace('"large-orders"', f'"{sink}"'))
    command = [str(installed(tmp_path, version)), "pipeline", "submit"]
    command += ["--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"]
    command += ["--properties-file", SETTINGS, DESCRIPTION]
    ended = 0
    for more in (6, 4) if campaign.is_full() else (6,):
        begin_watch_anew()  # two Sparks start for each run
        numbers = range(ended, ended := ended + more)
        send(our_broker, source, orders(numbers))
        send(our_broker, source, [b"no json"], queue=1)
        done = subprocess.run(
            command, cwd=place, env=environ(version, tmp_path), capture_output=True, text=True,
            timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        every = [json.loads(body) for body in orders(range(ended))]
        found = newest.run(tables, folder=str(tmp_path / "data"))
        assert len(found["messages"]) == ended + (1 if ended == 6 else 2)
        assert found["orders"] == sorted(([*one.values()] for one in every), key=repr)
        shops = {one["shop"]: [0, 0] for one in every}
        for one in every:
            shops[one["shop"]][0] += 1
            shops[one["shop"]][1] += one["cents"]
        assert found["totals"] == sorted([name, *sums] for name, sums in shops.items())
        assert [row[-1] for row in found["unreadable"]] == [1 if ended == 6 else 2]
        large = sorted(json.dumps(one).replace(" ", "") for one in every if one["cents"] >= 100_000)
        assert newest.run(bodies, name_server=our_broker.name_server, topic=sink) == large
