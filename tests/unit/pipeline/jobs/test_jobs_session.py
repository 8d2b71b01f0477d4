"""Progress reports of a job, without Spark."""

from types import SimpleNamespace
from typing import Any, cast

from aerobee.pipeline.jobs.common.spark_session import Progress


def test_before_the_first_step_a_line_of_progress_says_what_is_done() -> None:
    tracker = SimpleNamespace(getActiveStageIds=list)
    context = SimpleNamespace(applicationId="app", statusTracker=lambda: tracker)
    progress = Progress(cast(Any, SimpleNamespace(sparkContext=context)), None)
    assert progress._text() == "0 s: preparing"
