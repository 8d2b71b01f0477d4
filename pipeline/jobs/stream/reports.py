"""Reports how far a stream has got, while it runs and at its end; and takes the request to end."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

from aerobee.pipeline.brokers.offsets import from_json
from aerobee.pipeline.jobs.common.job_result import JobResult
from aerobee.pipeline.jobs.stream.job_plan import JobPlan

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """A context manager that takes SIGTERM and SIGINT as the wish to end in order; `asked` says
    whether there was one. In another thread than the main one it listens to nothing."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Listen from now on, in place of an earlier listener."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.signal(number, self._ask)
            self._before.setdefault(number, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _ask(self, *_: object) -> None:
        self.asked = True


class Report:
    """Counts the batches of one run, and says so now and then."""

    def __init__(
        self,
        plan: JobPlan,
        say: Callable[[str], None] | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._say, self._now = plan, say, now
        self._begun = self._said = now()
        self._rows_said = 0
        self._last_batch = -1
        self._lag: int | None = None
        self.batches = self.rows = self.bad = 0

    def look(self, query: Any) -> None:
        """Take in what the query has done since, and say it if it is time."""
        last = query.lastProgress
        if last is not None and last["batchId"] > self._last_batch + 1:
            for one in query.recentProgress:
                self.take(one)
        elif last is not None:
            self.take(last)
        now = self._now()
        if self._say is not None and now - self._said >= self._plan.report_s:
            self._say(self._text(now))
            self._said, self._rows_said = now, self.rows

    def take(self, progress: Any) -> None:
        """Count a batch that Spark reports; a batch that was taken before, or was idle, counts
        nothing."""
        number, metrics = progress["batchId"], _counts(progress)
        if number <= self._last_batch or metrics is None:
            return
        self._last_batch = number
        rows, bad = metrics
        self.batches += 1
        self.rows += rows
        self.bad += bad
        self._lag = _lag(progress)

    def result(self, was_asked: bool) -> JobResult:
        """The report at the end."""
        plan, table = self._plan, self._plan.table
        result = JobResult("stream")
        result.facts = {
            "topics": list(plan.topics) or [plan.pattern], "table": table.place,
            "format": table.format, "batches": self.batches, "messages": self.rows,
            "bad_bodies": self.bad, "stopped": was_asked,
        }  # fmt: skip
        result.say("read", f"{self.rows:,} messages of {plan.what} in {self.batches:,} batches")
        result.say("table", f"{table.place} ({table.format}), checkpoint {plan.checkpoint}")
        result.say("bad", f"{self.bad:,} bodies, {self._fate()}")
        result.say("end", "as asked by a signal" if was_asked else "all that was there is read")
        return result

    def _fate(self) -> str:
        if self._plan.bad_table is not None:
            return f"in table {self._plan.bad_table.place}"
        fates = {"permissive": "in the column bad_body", "dropmalformed": "left out"}
        return fates.get(self._plan.mode, "the first of which ends the stream")

    def _text(self, now: float) -> str:
        rate = (self.rows - self._rows_said) / max(now - self._said, 0.001)
        text = (
            f"{int(now - self._begun)} s: {self.rows:,} messages in {self.batches:,} batches, "
            f"{rate:,.0f} a second"
        )
        if self.bad:
            text += f", {self.bad:,} bad bodies {self._fate()}"
        return text if self._lag is None else text + f", {self._lag:,} behind"


def _counts(progress: Any) -> tuple[int, int] | None:
    """Rows of a batch, and bad ones; None where no batch was done."""
    metrics = progress["observedMetrics"]
    row = metrics.get("aerobee") if metrics else None
    if row is None:
        return None
    found = row.asDict() if hasattr(row, "asDict") else dict(row)
    return int(found["rows"]), int(found["bad"])


def _lag(progress: Any) -> int | None:
    """Messages that brokers have after the batch; None where Spark does not say (before 4.2)."""
    source = progress["sources"][0]
    try:
        return max(_total(source["latestOffset"]) - _total(source["endOffset"]), 0)
    except (ValueError, TypeError):
        return None  # no offsets of ours, or none at all


def _total(offset: Any) -> int:
    found = json.loads(offset) if isinstance(offset, str) else offset
    return sum(from_json(found).values())
