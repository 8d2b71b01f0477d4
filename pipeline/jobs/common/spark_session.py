"""The Spark session of a job: the one spark-submit made, or one on this machine."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

from aerobee.pipeline.errors import quieten_pyspark
from aerobee.pipeline.jobs.common.job_result import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINE_EVERY_S: Final = 5.0
NEEDED: Final = (
    "the pipeline needs PySpark 4.0 to 4.3, numpy, pandas and pyarrow, and a Java 17 or newer: "
    "pip install '.[spark]' where Aerobee's source is"
)


def open_session(name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """The session; `conf` wins over what is set here. Raises JobFailed without PySpark."""
    # Workers are to be the same Python as this one, unless somebody said which.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession

        for module in ("numpy", "pandas", "pyarrow"):  # Spark asks in the middle of a job
            if find_spec(module) is None:
                raise ImportError(f"No module named {module!r}")
    except ImportError as error:
        raise JobFailed(f"{NEEDED} ({error})") from error
    quieten_pyspark()
    builder = SparkSession.builder.appName(f"aerobee pipeline {name}")
    if master or not _is_submitted():
        builder = builder.master(master or "local[*]")
        if (master or "local").startswith("local"):
            # Spark's ports, its pages too, are nobody's else; they have no password.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.sql.session.timeZone": "UTC",
        # Spark's warnings are about this machine, not the store; its errors come with pages of
        # frames, and become one line of ours.
        **({} if _is_submitted() else {"spark.log.level": "FATAL"}),
        "spark.ui.showConsoleProgress": "false",
        **conf,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _ship_wheel(spark)
    return spark


def spark_version() -> str:
    """The version of the PySpark that is installed, "" without any."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return ""


def _ship_wheel(spark: SparkSession) -> None:
    """Give executors the wheel this runs from, if it came by --py-files: Spark sends such a file
    to them, but puts only .zip, .egg and .jar on their path."""
    import aerobee

    wheel, marker, _ = str(aerobee.__file__).rpartition(f"{os.sep}aerobee{os.sep}")
    if not marker or not wheel.endswith(".whl"):
        return
    folder = tempfile.mkdtemp(prefix="aerobee-")
    # Executors fetch it from here for as long as the application runs.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark.sparkContext.addPyFile(shutil.copy(wheel, os.path.join(folder, "aerobee.zip")))


#: The progress of each application of this process, by its id.
_PROGRESS: dict[str, Progress] = {}


def step(spark: SparkSession, text: str) -> None:
    """Say what the job does from now on: in its progress, and in Spark's own pages."""
    spark.sparkContext.setJobDescription(text)
    progress = _PROGRESS.get(spark.sparkContext.applicationId)
    if progress is not None:
        progress.begin(text)


def _is_submitted() -> bool:
    """Whether spark-submit runs this, which chose a master then."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class Progress:
    """Says each step of a job, and now and then how far Spark is with its tasks; a context
    manager, with a thread of its own."""

    def __init__(self, spark: SparkSession, say: Callable[[str], None] | None) -> None:
        self._tracker: Any = spark.sparkContext.statusTracker()
        self._application = spark.sparkContext.applicationId
        self._say = say
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipeline-progress", daemon=True)
        self._started = time.monotonic()
        self._step = "preparing"

    def begin(self, text: str) -> None:
        """The next step."""
        self._step = text
        if self._say is not None:
            self._say(self._text())

    def __enter__(self) -> Self:
        _PROGRESS[self._application] = self
        if self._say is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _PROGRESS.pop(self._application, None)
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        assert self._say is not None
        while not self._ended.wait(_LINE_EVERY_S):
            self._say(self._text())

    def _text(self) -> str:
        stages = [self._tracker.getStageInfo(one) for one in self._tracker.getActiveStageIds()]
        found = [one for one in stages if one is not None and one.numTasks]
        passed = int(time.monotonic() - self._started)
        done = sum(one.numCompletedTasks for one in found)
        total = sum(one.numTasks for one in found)
        return f"{passed} s: {self._step}" + (f", {done} of {total} tasks" if found else "")
