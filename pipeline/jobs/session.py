"""The Spark session of a job: the one spark-submit made, or one on this machine."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from aerobee.pipeline.jobs.result import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINE_EVERY_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.5
_NEEDED: Final = (
    "the pipeline needs PySpark 4.0 to 4.3, numpy and pyarrow, and a Java 17 or newer: "
    "pip install 'aerobee[spark]'"
)


def open_session(name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """The session; `conf` wins over what is set here. Raises JobFailed without PySpark."""
    # Workers are to be the same Python as this one, unless somebody said which.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise JobFailed(f"{_NEEDED} ({error})") from error
    builder = SparkSession.builder.appName(f"aerobee pipeline {name}")
    if master or not _is_submitted():
        builder = builder.master(master or "local[*]")
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        **conf,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not _is_submitted():
        # Spark's warnings about this machine are not about the store.
        spark.sparkContext.setLogLevel("ERROR")
    return spark


def _is_submitted() -> bool:
    """Whether spark-submit runs this, which chose a master then."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class Progress:
    """Says now and then how far Spark is with the job's tasks; a context manager."""

    def __init__(self, spark: SparkSession, say: Callable[[str], None] | None) -> None:
        self._tracker: Any = spark.sparkContext.statusTracker()
        self._say = say
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipeline-progress", daemon=True)
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        if self._say is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        last_line = time.monotonic()
        while not self._ended.wait(_LOOK_EVERY_S):
            if time.monotonic() - last_line < _LINE_EVERY_S:
                continue
            last_line = time.monotonic()
            text = self._text()
            if text and self._say is not None:
                self._say(text)

    def _text(self) -> str:
        stages = [self._tracker.getStageInfo(one) for one in self._tracker.getActiveStageIds()]
        found = [one for one in stages if one is not None and one.numTasks]
        passed = int(time.monotonic() - self._started)
        parts = [
            f"{one.name.split(' at ')[0]}: {one.numCompletedTasks} of {one.numTasks} tasks"
            for one in found
        ]
        return f"{passed} s: {'; '.join(parts)}" if parts else ""
