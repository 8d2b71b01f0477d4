"""The job `retention`: what if messages were kept for another time, or the log at another size?

Nothing is deleted. The rule is the broker's own (`store/background/retention/deletion_plan.py`),
asked on request and with all the runs it takes; a size is a disk that the log may fill no further.
Times of segments come from the messages in them, not from the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aerobee.pipeline.errors import StoreReadError
from aerobee.pipeline.files.directory import Store
from aerobee.pipeline.files.entries import ENTRY_BYTES, QueueEntries
from aerobee.pipeline.jobs.common.inputs import StoreInput
from aerobee.pipeline.jobs.common.job_result import JobFailed, JobResult, size_text
from aerobee.pipeline.jobs.common.spark_session import step
from aerobee.protocol.frames.fastjson import JsonError, loads
from aerobee.store.background.retention.deletion_plan import choose, unconsumed
from aerobee.store.background.retention.segment_times import MESSAGE, LastStored, SegmentPlace
from aerobee.store.background.retention.triggers import Disks, RetentionRules, judge
from aerobee.store.disk.files import DiskSpace
from aerobee.store.inspect.config import committed_in
from aerobee.store.inspect.start_checks import LMQ_OFFSETS, OFFSETS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HOUR_MS = 3_600_000
# Higher than any store time and any log offset.
_NEVER = 1 << 62
# The one directory and disk of a log that a policy is tried on.
_LOG = "log"
_OUTCOME_DDL = (
    "policy string, segments bigint, freedBytes bigint, leftBytes bigint, beginOffset bigint, "
    "oldestMs bigint"
)
_LOSS_DDL = (
    "policy string, group string, topic string, queueId int, committed bigint, behind bigint, "
    "lost bigint"
)


class QueueEnds(NamedTuple):
    """A queue's first offset, the offset after its last, and for a log offset the first offset of a
    message at or above it."""

    first: int
    end: int
    first_at: Callable[[int], int]


class SegmentFacts(NamedTuple):
    """Log offsets [start, end), bytes on disk, and the store time of its last message."""

    start: int
    end: int
    size: int
    last_ms: int


class Policy(NamedTuple):
    """An age in hours, a total size of the log in bytes, or both: what breaks one of them goes."""

    hours: float | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """For a report's row."""
        parts = [f"{self.hours:g} h"] if self.hours is not None else []
        return " or ".join([*parts, *([f"{self.size} bytes"] if self.size is not None else [])])


class Outcome(NamedTuple):
    """The effect of a policy on the log, which begins at log offset `begin` then."""

    policy: str
    segments: int
    freed: int
    left: int
    begin: int
    oldest_ms: int


class Loss(NamedTuple):
    """A group's loss in one queue: `behind` messages are not consumed yet, `lost` of them go."""

    policy: str
    group: str
    topic: str
    queue_id: int
    committed: int
    behind: int
    lost: int


class Committed(NamedTuple):
    """Where a group stands in a queue."""

    group: str
    topic: str
    queue_id: int
    offset: int


def retention(
    spark: SparkSession, store: StoreInput, policies: Sequence[Policy], *, now_ms: int | None = None
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


def outcome(policy: Policy, segments: Sequence[SegmentFacts], now_ms: int) -> Outcome:
    """Apply the policy to the segments (in order, at least one)."""
    assert segments
    total = sum(one.size for one in segments)
    rules = RetentionRules(
        retention_ms=_NEVER if policy.hours is None else round(policy.hours * _HOUR_MS),
        delete_hours=frozenset(),
        max_used_ratio=1.0,
        force_ratio=1.0 if policy.size is None else policy.size / total,
        warning_ratio=1.0,
        clean_forcibly=policy.size is not None,
    )
    verdict = judge(rules, -1, Disks({_LOG: DiskSpace(total, 0)}, {}), manual=True)
    times = {one.start: LastStored(one.last_ms, MESSAGE) for one in segments}
    plan = choose(
        rules,
        verdict,
        [SegmentPlace(f"{_LOG}/{one.start}", one.start, one.end) for one in segments],
        lambda segment, _: times[segment.start],
        _NEVER,
        now_ms,
        len(segments),
    )
    gone = len(plan.doomed)
    left = total - plan.bytes
    oldest = segments[max(0, gone - 1)]
    return Outcome(policy.name, gone, plan.bytes, left, segments[gone].start, oldest.last_ms)


def losses(
    result: Outcome, committed: Iterable[Committed], queues: Callable[[str, int], QueueEnds | None]
) -> Iterator[Loss]:
    """The loss of each group that is behind; queues that are gone count for nothing."""
    for one in committed:
        ends = queues(one.topic, one.queue_id)
        behind = 0 if ends is None else unconsumed(one.offset, ends.first, ends.end)
        if ends is not None and behind:
            begin = min(ends.end, ends.first_at(result.begin))
            lost = unconsumed(one.offset, ends.first, begin)
            yield Loss(result.policy, *one, behind, lost)


def committed_offsets(data: bytes) -> Iterator[Committed]:
    """The offsets in `consumerOffset.json` or `lmqConsumerOffset.json`. Raises JsonError."""
    for topic, group, queue_id, offset in committed_in(loads(data, len(data) + 1)):
        yield Committed(group, topic, queue_id, offset)


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
    """The offsets of groups, by the broker's own tables, and what is not known."""
    found: list[Committed] = []
    notes: list[str] = []
    for name in (OFFSETS, LMQ_OFFSETS):
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
        self._open: dict[tuple[str, int], QueueEntries] = {}

    def __call__(self, topic: str, queue_id: int) -> QueueEnds | None:
        files = self._files.get((topic, queue_id))
        if not files:
            return None
        queue = self._open.get((topic, queue_id))
        if queue is None:
            queue = self._open[topic, queue_id] = QueueEntries(self._place, topic, queue_id, files)
        base = files[0].start // ENTRY_BYTES
        return QueueEnds(
            base + queue.search(0), base + queue.end(), lambda place: base + queue.search(place)
        )

    def close(self) -> None:
        """Give the files back."""
        for queue in self._open.values():
            queue.close()


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
