"""The three moments of a write: a task's rows, the driver's commit, the driver's abort.

Tasks and driver are different processes and meet in `SinkCommit` only. A commit that is repeated,
or comes after a crash, is the same call again; an abort after it does nothing, because Spark calls
abort with whole messages when a commit has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from aerobee.client.errors import ClientError
from aerobee.client.producing.sender import make_unique_ids
from aerobee.pipeline.sink.rows import RowMaker, values_of
from aerobee.pipeline.sink.send import PlainSender, SinkSendError, StagedSender
from aerobee.pipeline.sink.write_plan import SinkPlan, connected
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.headers.stages import StagePart

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("aerobee.pipeline")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task; it is pickled."""

    query: str
    batch: int
    rows: int
    parts: list[StagePart]


#: Rows as Spark hands them over: Arrow batches, or single rows (streams of PySpark 4.0).
GivenRows = Iterable["pa.RecordBatch | Sequence[Any]"]


def write_partition(
    plan: SinkPlan, query: str, batch: int, partition: int, given: GivenRows
) -> TaskResult:
    """Stage, or send, one partition's rows. Raises SinkRowError, SinkSendError."""
    task = f"{query}/{batch}/{partition}"
    options = plan.options
    with connected(options) as (thread, client):

        def queues_of(topic: str) -> Sequence[MessageQueue]:
            try:
                return thread.run(client.queues(topic, is_known=topic == options.topic))
            except ClientError as error:
                raise SinkSendError(f"topic {topic!r}: {error}") from error

        sender: StagedSender | PlainSender
        if plan.staged is None:
            sender = PlainSender(client, thread, options)
        else:
            sender = StagedSender(
                client,
                thread,
                options,
                key=(query, batch),
                partition=partition,
                capabilities=plan.staged,
            )
        ids = make_unique_ids(client.local_ip)
        maker = RowMaker(plan.columns, options.topic, task, partition, queues_of, ids)
        try:
            count = _send_all(maker, sender, given)
            parts = sender.finish()
        except BaseException:
            sender.discard()
            raise
    return TaskResult(query, batch, count, parts)


def _send_all(maker: RowMaker, sender: StagedSender | PlainSender, given: GivenRows) -> int:
    """Hand all rows to the sender; how many they were."""
    import pyarrow as pa

    from aerobee.pipeline.sink.packed import MOST_ROWS, Packer

    topic, count = maker.topic, 0
    packer = None
    if topic is not None and Packer.may_pack(maker.columns, topic):
        packer = Packer(maker, topic)
    for some in given:
        if not isinstance(some, pa.RecordBatch):
            sender.add(maker.row(count, some))
            count += 1
            continue
        for begin in range(0, some.num_rows, MOST_ROWS):
            part = some.slice(begin, MOST_ROWS)
            packed = None if packer is None else packer.pack(part, count)
            if packed is not None and sender.takes(*packed.largest, packed.brokers):
                for piece in packed.pieces:
                    sender.add_piece(piece)
            else:
                for row in maker.rows(values_of([part]), count):
                    sender.add(row)
            count += part.num_rows
    return count


def commit_write(plan: SinkPlan, results: Sequence[TaskResult]) -> None:
    """Decide the batch and wait until it is published; nothing to do at least once."""
    if plan.staged is None or not results:
        return
    staged = _staged(plan, results)
    with connected(plan.options) as (thread, client):
        decision = thread.run(client.commit(*staged))
    if decision.existed:
        log.warning(
            "the batch was decided before, its rows of then count query=%s batch=%d "
            "stages_dropped=%d", staged.query, staged.batch, len(staged.parts),
        )  # fmt: skip


def abort_write(plan: SinkPlan, results: Sequence[TaskResult]) -> None:
    """Give up what was staged, unless the batch is decided."""
    if plan.staged is None or not results:
        return
    staged = _staged(plan, results)
    try:
        with connected(plan.options) as (thread, client):
            if not thread.run(client.abort(*staged)):
                log.warning("abort after the decision query=%s batch=%d", *staged[:2])
    except ClientError as error:
        # They expire by themselves; the error that led here is the one to be raised.
        log.warning("stages not given up query=%s batch=%d error=%s", *staged[:2], error)


class _Staged(NamedTuple):
    """The stages of all tasks of a batch, and the brokers that may hold some of them."""

    query: str
    batch: int
    parts: list[StagePart]
    brokers: tuple[str, ...]


def _staged(plan: SinkPlan, results: Sequence[TaskResult]) -> _Staged:
    batches = {(result.query, result.batch) for result in results}
    assert len(batches) == 1, batches
    parts = [part for one in results for part in one.parts]
    return _Staged(*batches.pop(), parts, plan.brokers)
