"""Spark drivers as child processes of the tests, an environment for each version of PySpark.

The tests themselves run in the project's own .venv, which has no PySpark. A `Driver` is a process
of the version's environment with one SparkSession; `run` carries a function of the test module
there by its source text, so that a test reads as if it ran in one place:

    def count(spark, options):
        return spark.read.format("rocketmq").options(**options).load().count()

    assert driver.run(count, options={...}) == 10

What such a function uses it imports itself; arguments and result are pickled.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import os
import pickle
import shutil
import textwrap
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import campaign, parts
from tests.interop.processes import Dialogue
from tests.tools import SHORT_LIVED_JAVA

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENTS = ROOT / ".cache" / "spark"
# The first one runs everything, the others in a campaign.
VERSIONS = tuple(os.environ.get("AEROBEE_SPARK_VERSION", "").split()) or parts.spark_versions()
# Patience for a machine with other things to do; nothing here waits for that long by itself.
START_S, RUN_S = 300.0, 300.0
# A driver that has nothing to do answers a ping within milliseconds.
PING_S = 60.0


def quick_java(version: str) -> str:
    """Options of Java for a test's Spark.

    The archive of classes (`train.py`) halves the time to the first answer; Java leaves one aside
    that is not there or does not fit, and would say so where the tests read.
    """
    archive = ENVIRONMENTS / version / "spark.jsa"
    of_archive = (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable")
    return " ".join([*SHORT_LIVED_JAVA, *of_archive])


def quick(version: str) -> dict[str, str]:
    """The environment of programs that start Spark themselves, from the working tree."""
    return {
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": quick_java(version),
    }


def python_of(version: str) -> Path:
    """The interpreter that has this version."""
    return ENVIRONMENTS / version / "bin" / "python"


def missing(version: str) -> str | None:
    """The reason why a version cannot be used, in one line; None when it is ready."""
    if shutil.which("java") is None:
        return "Spark needs Java: there is none on this machine"
    if not (ENVIRONMENTS / version / ".made-from").exists():
        script = "setup.sh" if version[0].isdigit() else "lake.sh"
        return f"PySpark {version}: not set up, run tests/spark/{script}"
    return None


class SparkFailed(AssertionError):
    """A function failed in the driver; the text has the error and its traceback."""


class Driver:
    """A driver process with one SparkSession; `path` is what it and its workers import from."""

    def __init__(
        self,
        version: str,
        folder: Path,
        *,
        path: str | None = None,
        master: str = "local[2]",
        conf: dict[str, str] | None = None,
    ) -> None:
        # The files that Spark unpacks would stay behind in the system's place after a kill.
        scratch = folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        python = str(python_of(version))
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"{quick_java(version)} -Djava.io.tmpdir={scratch}",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            # Compiling a plan for ten rows is a sixth of what a short test costs.
            "spark.sql.codegen.wholeStage": str(campaign.is_full()).lower(),
            **(conf or {}),
        }
        environ = {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PYTHONPATH": str(ROOT) if path is None else path,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(scratch),
        }
        child = str(Path(__file__).with_name("driver_main.py"))
        argv = [python, child, master, base64.b64encode(pickle.dumps(settings)).decode()]
        self.version = version
        self.child = Dialogue(argv, folder / f"driver-{version}.log", environ, start_s=START_S)

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def run(
        self, function: Callable[..., Any], /, *, timeout_s: float = RUN_S, **given: Any
    ) -> Any:
        """The function's result there; SparkFailed with its error."""
        return _result(self.child.ask(_request(function, given), timeout_s))

    @contextlib.contextmanager
    def running(
        self, function: Callable[..., Any], /, **given: Any
    ) -> Iterator[Callable[[float], Any]]:
        """Runs it as `run` does, while the test does something else; the yielded function waits for
        the result."""
        pool = ThreadPoolExecutor(1)
        answer = pool.submit(self.child.ask, _request(function, given), RUN_S)
        try:
            yield lambda timeout_s: _result(answer.result(timeout_s))
        finally:
            pool.shutdown(wait=False)

    def answers(self) -> bool:
        """Whether its JVM does what it is asked: Spark is gone when the JVM died alone, of too
        little memory or by a signal, and the process that talks to it goes on. So it is when what a
        test before has left undone answers in the place of the ping."""

        def ping(spark: Any, text: str) -> str:
            return str(spark.sparkContext._jvm.java.lang.String(text))

        text = uuid.uuid4().hex
        try:
            return self.child.running and bool(self.run(ping, timeout_s=PING_S, text=text) == text)
        except AssertionError:
            return False

    def kill(self) -> None:
        """kill -9 of the driver, its JVM and its workers: what a power cut leaves of them."""
        if self.child.running:
            for pid in (*descendants(self.pid), self.pid):
                _kill(pid)
            self.child.process.wait()

    def close(self) -> None:
        if self.answers():
            self.child.close()
        else:
            self.kill()


def whole_versions() -> tuple[str, ...]:
    """The versions that run everything."""
    return VERSIONS if campaign.is_full() else VERSIONS[:1]


def each_version(test: Callable[[str], None]) -> None:
    """Run the test for all versions that run it, at the same time: most of it is waiting."""
    with ThreadPoolExecutor(len(VERSIONS)) as pool:
        runs = [pool.submit(test, version) for version in whole_versions()]
    for run in runs:
        run.result()


def _request(function: Callable[..., Any], given: dict[str, Any]) -> str:
    source = textwrap.dedent(inspect.getsource(function))
    request = {"source": source, "name": function.__name__, "given": given}
    return base64.b64encode(pickle.dumps(request)).decode()


def _result(line: dict[str, Any]) -> Any:
    if "error" in line:
        raise SparkFailed(line["error"])
    return pickle.loads(base64.b64decode(line["result"]))


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = [int(child) for child in (task / "children").read_text().split()]
        except FileNotFoundError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)
