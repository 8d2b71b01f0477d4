"""docs/examples/change_data.py: a table from the change data of a drawn history equals its source,
over kills of the program and over replays of the whole topic."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import campaign
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until
from tests.parts import begin_watch_anew
from tests.spark.kit import ROOT, Driver, python_of, quick
from tests.spark.messages import new_topic, send

EXAMPLE = ROOT / "docs" / "examples" / "change_data.py"
SCHEMA = "id bigint, name string, cents bigint, paid boolean"
QUEUES = 3
KEYS = 400
BATCHES = 13 if campaign.is_full() else 3
Row = dict[str, Any]


@dataclass
class Source:
    """A table of a database, and the messages that its changes are, by queue."""

    draw: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    messages: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    unapplied: int = 0

    def change(self) -> int:
        """One message more; how many rows it changed."""
        queue = self.draw.randrange(QUEUES)
        number = self.draw.randint(1, 3) if self.draw.random() < 0.2 else 1
        pairs = [self._change_row(queue) for _ in range(number)]
        kinds = {(before is None, after is None) for before, after in pairs}
        if self.draw.random() < 0.5 and len(kinds) == 1:
            self.messages[queue].append(self._canal(pairs))
        else:
            self.messages[queue] += [self._debezium(*pair) for pair in pairs]
        if self.draw.random() < 0.01:
            other = [b"no json", b'{"type": "TRUNCATE", "isDdl": true}', b'{"op": "t"}', b"[1]"]
            self.messages[queue].append(self.draw.choice(other))
            self.unapplied += 1
        return len(pairs)

    def _change_row(self, queue: int) -> tuple[Row | None, Row | None]:
        """Change the row of a key of that queue; some changes move a row to another key of it."""
        key = self.draw.randrange(KEYS) * QUEUES + queue
        before = self.rows.pop(key, None)
        if before is not None and self.draw.random() < 0.25:
            return before, None
        after = (before or {}) | self._values()
        if before is not None and self.draw.random() < 0.1:
            other = self.draw.randrange(KEYS) * QUEUES + queue
            key = key if other in self.rows else other
        after["id"] = key
        self.rows[key] = after
        return before, after

    def _values(self) -> Row:
        return {
            "name": self.draw.choice(["", "Ünal", 'a "quoted" name', None, "x" * 50]),
            "cents": self.draw.randrange(-(10**12), 10**12),
            "paid": self.draw.choice([True, False, None]),
        }

    def _canal(self, pairs: list[tuple[Row | None, Row | None]]) -> bytes:
        """A flat message as Canal writes it: all values are texts, `old` has the changed values."""
        before, after = pairs[0]
        kind = "INSERT" if before is None else "DELETE" if after is None else "UPDATE"
        old = [
            {name: value for name, value in _texts(before).items() if _texts(after)[name] != value}
            for before, after in pairs
            if before is not None and after is not None
        ]
        data = [_texts(row) for pair in pairs if (row := pair[1] or pair[0]) is not None]
        message = {
            "data": data, "database": "shop", "es": 1, "id": 7, "isDdl": False, "old": old or None,
            "pkNames": ["id"], "sql": "", "table": "customers", "ts": 2, "type": kind,
        }  # fmt: skip
        return json.dumps(message, ensure_ascii=False).encode()

    def _debezium(self, before: Row | None, after: Row | None) -> bytes:
        kind = "d" if after is None else self.draw.choice("cr") if before is None else "u"
        payload = {"before": before, "after": after, "op": kind, "ts_ms": 1}
        payload["source"] = {"db": "shop", "table": "customers"}
        if self.draw.random() < 0.5:
            return json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode()
        return json.dumps(payload).encode()


def _texts(row: Row) -> dict[str, str | None]:
    bits = {True: "1", False: "0"}
    values = {n: bits[value] if isinstance(value, bool) else value for n, value in row.items()}
    return {name: None if value is None else str(value) for name, value in values.items()}


@contextmanager
def running(
    version: str, broker: Broker, topic: str, folder: Path, checkpoint: str, most: int
) -> Iterator[subprocess.Popen[bytes]]:
    """The example; with all that it has started it is killed at the end."""
    python = str(python_of(version))
    spark = "--master local[2] --conf spark.ui.enabled=false --conf spark.log.level=ERROR"
    more = {
        "PYSPARK_PYTHON": python,
        "PYSPARK_SUBMIT_ARGS": f"{spark} --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "NAMESRV_ADDR": broker.name_server,
    }
    words = [str(folder), "--schema", SCHEMA, "--key", "id", "--checkpoint", checkpoint]
    program = subprocess.Popen(
        [python, str(EXAMPLE), topic, *words, "--option", f"maxOffsetsPerTrigger={most}"],
        env=os.environ | quick(version) | more,
        stdout=subprocess.DEVNULL,
        stderr=folder.with_suffix(".log").open("a"),
        start_new_session=True,
    )
    try:
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def table(spark: Any, example: str, folder: str) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows that the example gives readers, and how many messages it did not apply in each
    checkpoint."""
    import importlib.util
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("change_data", example)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = [row.asDict() for row in module.read_table(spark, folder).collect()]
    places = sorted(Path(folder, "unapplied").iterdir())
    return rows, [spark.read.parquet(f"{place}/batch=*").count() for place in places]


def test_the_table_equals_its_source_over_kills_and_replays(
    newest: Driver, our_broker: Broker, tmp_path: Path
) -> None:
    draw = campaign.rng("change data")
    wanted, kills = campaign.size("change data"), BATCHES - 3 if campaign.is_full() else 1
    source, changed = Source(draw), 0
    while changed < wanted:
        changed += source.change()
    topic = new_topic(our_broker, QUEUES)
    for queue, bodies in source.messages.items():
        send(our_broker, topic, bodies, queue, batch=200)
    folder = tmp_path / "customers"
    most = sum(map(len, source.messages.values())) // BATCHES + 1
    start = newest.version, our_broker, topic, folder
    for number in range(kills):
        begin_watch_anew()
        before = _states(folder)
        states = draw.randint(0, 1)
        with running(*start, "first", most) as doomed:
            wait_until(
                lambda: doomed.poll() is not None or len(_states(folder) - before) > states,  # noqa: B023
                300, f"state {number}", 0.01,
            )  # fmt: skip
    for checkpoint in ("first", "again"):
        begin_watch_anew()
        with running(*start, checkpoint, most) as ended:
            assert ended.wait(600) == 0, folder.with_suffix(".log").read_text()[-3000:]
        rows, unapplied = newest.run(table, example=str(EXAMPLE), folder=str(folder))
        assert {row["id"]: row for row in rows} == source.rows
        assert len(rows) == len(source.rows)
        assert set(unapplied) == {source.unapplied}
    assert len(_states(folder)) == 3


def _states(folder: Path) -> set[str]:
    place = folder / "states"
    return {path.name for path in place.iterdir()} if place.exists() else set()
