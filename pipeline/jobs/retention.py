"""The job `retention`: what if messages were kept for another time, or the log at another size?

Nothing is deleted. Times of segments come from the messages in them, not from the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from aerobee.pipeline.files.directory import Store, StoreReadError
from aerobee.pipeline.files.entries import Queue
from aerobee.pipeline.jobs.inputs import StoreInput
from aerobee.pipeline.jobs.result import JobFailed, JobResult, size_text
from aerobee.pipeline.jobs.session import step
from aerobee.pipeline.jobs.statistics.whatif import (
    Committed,
    Loss,
    Outcome,
    Policy,
    QueueEnds,
    SegmentFacts,
    committed_offsets,
    losses,
    outcome,
)
from aerobee.protocol.frames.fastjson import JsonError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLES: Final = ("consumerOffset.json", "lmqConsumerOffset.json")
_OUTCOME_DDL = (
    "policy string, segments bigint, freedBytes bigint, leftBytes bigint, beginOffset bigint, "
    "oldestMs bigint"
)
_LOSS_DDL = (
    "policy string, group string, topic string, queueId int, committed bigint, behind bigint, "
    "lost bigint"
)


def retention(
    spark: SparkSession,
    store: StoreInput,
    policies: Sequence[Policy],
    *,
    now_ms: int | None = None,
) -> JobResult:
    """Frames: `outcomes` (one a policy) and `losses` (one a policy, group and queue).

    Raises JobFailed when the store is empty.
    """
    result = JobResult("retention")
    step(spark, "reading the log")
    found = store.store()
    segments, bad = _segments(spark, store, found, result)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    committed, notes = _committed(found)
    outcomes = [outcome(policy, segments, now_ms) for policy in policies]
    lookup = _Queues(found)
    lost = [loss for one in outcomes for loss in losses(one, committed, lookup)]
    lookup.close()
    result.facts |= {
        "log_start": segments[0].start,
        "log_end": segments[-1].end,
        "bad_records": bad,
        "outcomes": [one._asdict() for one in outcomes],
    }
    for note in notes:
        result.say("note", note)
    result.table("what each policy deletes", [_outcome_row(one) for one in outcomes], 50)
    result.table("what groups lose", _loss_rows(lost), 50)
    if committed and not any(one.lost for one in lost):
        result.lines += ["", "no group would lose a message it has not consumed"]
    result.frames["outcomes"] = spark.createDataFrame(outcomes, _OUTCOME_DDL)
    result.frames["losses"] = spark.createDataFrame(lost, _LOSS_DDL)
    return result


def _segments(
    spark: SparkSession, store: StoreInput, found: Store, result: JobResult
) -> tuple[list[SegmentFacts], int]:
    """The segments that hold messages, with times from their messages."""
    from pyspark.sql import functions as f

    size = found.segments[0].size if found.segments else 1
    columns = ("commitLogOffset", "storeTimestamp", "error")
    rows = store.rows(spark, columns, use="commitlog")
    good = f.col("error").isNull()
    times: DataFrame = rows.groupBy(f.expr(f"commitLogOffset div {size}").alias("number")).agg(
        f.max(f.unix_millis("storeTimestamp")), f.count(f.when(~good, 1)), f.count(f.when(good, 1))
    )
    by_number = {row[0]: (row[1], row[2], row[3]) for row in times.collect()}
    segments = [
        SegmentFacts(file.start, file.end, file.size, by_number[file.start // size][0] or 0)
        for file in found.segments
        if file.start // size in by_number
    ]
    if not segments:
        raise JobFailed(f"{found.name} holds no message; there is nothing to delete")
    bad = sum(one[1] for one in by_number.values())
    records = sum(one[2] for one in by_number.values())
    total = sum(one.size for one in segments)
    result.say("read", f"{records:,} records in {len(segments)} segments, {size_text(total)}")
    result.say("range", f"log offsets {segments[0].start} to {segments[-1].end}")
    result.say("bad", f"{bad:,} damaged places")
    return segments, bad


def _committed(store: Store) -> tuple[list[Committed], list[str]]:
    """Where groups stand, by the broker's own tables, and what cannot be told."""
    found: list[Committed] = []
    notes: list[str] = []
    for name in _TABLES:
        path = f"{store.name}/config/{name}"
        try:
            with store.place.open(path) as reader:
                found += committed_offsets(reader.read(0, 1 << 30))
        except (StoreReadError, FileNotFoundError):
            continue
        except (JsonError, UnicodeDecodeError) as error:
            notes.append(f"{path} cannot be read ({error}); its groups are left out")
    if not found and not notes:
        notes.append("there is no consumerOffset.json: what groups lose is not known")
    return found, notes


class _Queues:
    """Looks places up in consume queues, each opened once."""

    def __init__(self, store: Store) -> None:
        self._place = store.place
        self._files = store.queues()
        self._open: dict[tuple[str, int], Queue] = {}

    def __call__(self, topic: str, queue_id: int) -> QueueEnds | None:
        files = self._files.get((topic, queue_id))
        if not files:
            return None
        queue = self._open.get((topic, queue_id))
        if queue is None:
            queue = self._open[topic, queue_id] = Queue(self._place, topic, queue_id, files)
        base = files[0].start // 20
        return base + queue.search(0), base + queue.end(), _first_at(queue, base)

    def close(self) -> None:
        """Give the files back."""
        for queue in self._open.values():
            queue.close()


def _first_at(queue: Queue, base: int) -> Callable[[int], int]:
    return lambda log_offset: base + queue.search(log_offset)


def _outcome_row(one: Outcome) -> dict[str, object]:
    kept = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.oldest_ms / 1000))
    return {
        "keep": one.policy,
        "segments": one.segments,
        "freed": size_text(one.freed),
        "left": size_text(one.left),
        "messages from": kept,
    }


def _loss_rows(lost: list[Loss]) -> list[dict[str, object]]:
    sums: dict[tuple[str, str, str], list[int]] = {}
    for one in lost:
        found = sums.setdefault((one.policy, one.group, one.topic), [0, 0])
        found[0] += one.behind
        found[1] += one.lost
    return [
        {"keep": policy, "group": group, "topic": topic, "behind": behind, "lost": gone}
        for (policy, group, topic), (behind, gone) in sorted(sums.items())
    ]
