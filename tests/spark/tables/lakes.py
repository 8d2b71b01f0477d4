"""Lakes for the tests of `aerobee pipeline stream`: their Sparks, the command, reading them back.

Each format has the newest Spark that its package supports: a PySpark of its own with the package's
jars (lake.sh), but for Parquet, which has the newest there is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee.pipeline.jobs.stream.tables.packages import PACKAGES
from tests.interop.brokers import Broker
from tests.spark.kit import ENVIRONMENTS, VERSIONS, Driver, descendants, python_of, quick

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LakeKind:
    """A format, and the environment of Spark that it has."""

    kind: str
    version: str

    def jars(self) -> dict[str, str]:
        """Where Spark finds the package, which `--packages` does for users; and what suits tables
        of a dozen rows."""
        folder = ENVIRONMENTS / f"jars-{self.kind}"
        found = ",".join(sorted(str(path) for path in folder.glob("*.jar")))
        small = {"spark.databricks.delta.snapshotPartitions": "1"} if self.kind == "delta" else {}
        return {"spark.jars": found} | small if found else {}

    def settings(self) -> dict[str, str]:
        """Settings of a session that is made before the job knows the session's use."""
        package = PACKAGES.get(self.kind)
        return self.jars() | (dict(package.settings) if package else {})


LAKES = {
    "parquet": LakeKind("parquet", VERSIONS[0]),
    "delta": LakeKind("delta", "delta"),
    "iceberg": LakeKind("iceberg", "iceberg"),
}
#: The formats with a Spark of their own.
DEAR = ("delta", "iceberg")


@dataclass(slots=True)
class Lake:
    """A format with a driver of its Spark."""

    kind: str
    driver: Driver

    def stream(self, broker: Broker, topic: str, table: Path, *more: str) -> Report:
        """One run over what is there, in the driver: the code, and facts or the error."""
        given = arguments(self.kind, broker, topic, table, *more)
        return self.driver.run(stream_job, arguments=[*given, "--available-now"])  # type: ignore[no-any-return]

    def done(self, broker: Broker, topic: str, table: Path, *more: str) -> Report:
        """The facts of a run that ends well."""
        found = self.stream(broker, topic, table, *more)
        assert found["code"] == 0, found["error"]
        facts: Report = found["facts"]
        return facts

    def refused(self, broker: Broker, topic: str, table: Path, *more: str, code: int = 3) -> str:
        """The sentence of a run that does not."""
        found = self.stream(broker, topic, table, *more)
        assert found["code"] == code, found
        assert "\n" not in found["error"]
        return str(found["error"])

    def rows(self, table: Path, columns: str = "*") -> list[dict[str, Any]]:
        """The rows that readers see, in the order of the messages."""
        return self.driver.run(  # type: ignore[no-any-return]
            read_table, kind=self.kind, table=str(table), columns=columns
        )

    def sums(self, table: Path) -> dict[str, int]:
        """How many messages there are, how many different ones, and the sum of their CRCs."""
        return self.driver.run(read_sums, kind=self.kind, table=str(table))  # type: ignore[no-any-return]

    def sql(self, text: str) -> list[dict[str, Any]]:
        """Change or read a table as somebody else does."""
        return self.driver.run(run_sql, text=text)  # type: ignore[no-any-return]

    def name(self, table: Path) -> str:
        """The table in SQL."""
        if self.kind == "delta":
            return f"delta.`file://{table}`"
        catalog = f"of_{zlib.crc32(str(table.parent).encode())}"  # a session keeps one as it was
        self.driver.run(set_catalog, catalog=catalog, warehouse=f"file://{table.parent}")
        return f"{catalog}.`{table.name}`"


def arguments(kind: str, broker: Broker, topic: str, table: Path, *more: str) -> list[str]:
    return [
        "stream", "-n", broker.name_server, "--topic", topic, "--to", str(table), "--format", kind,
        *more,
    ]  # fmt: skip


class Command:
    """`aerobee pipeline stream` as users run it: a process that goes on until it is ended."""

    def __init__(self, kind: str, arguments: list[str], folder: Path) -> None:
        version = LAKES[kind].version
        settings = LAKES[kind].jars() | {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
        }
        conf = [word for one in settings.items() for word in ("--conf", "=".join(one))]
        command = [str(python_of(version)), "-m", "aerobee.cli", "pipeline", *arguments]
        self.log = folder / "stream.log"
        self.process = subprocess.Popen(
            [*command, "--master", "local[2]", *conf],
            stdout=self.log.open("ab"), stderr=subprocess.STDOUT, env=os.environ | quick(version),
            cwd=folder,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9 of the process, its JVM and its workers."""
        for pid in (*descendants(self.process.pid), self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 120) -> int:
        """A signal as a service manager or a terminal sends it; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


# --- what runs in drivers -------------------------------------------------------------------------


def stream_job(spark: Any, arguments: list[str]) -> dict[str, Any]:
    from aerobee.pipeline.jobs.arguments import build_parser
    from aerobee.pipeline.jobs.common.job_result import JobFailed
    from aerobee.pipeline.jobs.run import run_job
    from aerobee.pipeline.jobs.submit import parse_time

    parsed = build_parser().parse_args(arguments)
    try:
        result = run_job(parsed, parse_time, None, spark)
    except JobFailed as error:
        return {"code": error.code, "error": str(error)}
    return {"code": result.code, "facts": result.facts, "text": "\n".join(result.lines)}


def read_table(spark: Any, kind: str, table: str, columns: str) -> list[dict[str, Any]]:
    reader = spark.read.option("mergeSchema", "true") if kind == "parquet" else spark.read
    rows = reader.format(kind).load(table).selectExpr(*columns.split("; "), "queueId AS q_",
                                                      "queueOffset AS o_")  # fmt: skip
    found = rows.orderBy("q_", "o_").drop("q_", "o_").collect()
    plain = [row.asDict(recursive=True) for row in found]
    return [{k: bytes(v) if isinstance(v, bytearray) else v for k, v in r.items()} for r in plain]


def read_sums(spark: Any, kind: str, table: str) -> dict[str, int]:
    row = (
        spark.read.format(kind)
        .load(table)
        .selectExpr(
            "count(*) AS messages",
            "count(DISTINCT topic, brokerName, queueId, queueOffset) AS different",
            "coalesce(sum(crc32(body)), 0) AS crc",
        )
        .collect()[0]
    )
    return row.asDict()


def run_sql(spark: Any, text: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in spark.sql(text).collect()]


def set_catalog(spark: Any, catalog: str, warehouse: str) -> None:
    name = f"spark.sql.catalog.{catalog}"
    spark.conf.set(name, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{name}.type", "hadoop")
    spark.conf.set(f"{name}.cache-enabled", "false")
    spark.conf.set(f"{name}.warehouse", warehouse)
