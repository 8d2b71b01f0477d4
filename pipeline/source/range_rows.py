"""Reads the partition of a task: pulls a range of offsets and yields Arrow batches.

The bytes of an answer go into the bulk decoder as they are; answers smaller than a good batch (a
Java broker's) are joined first. A batch never waits for more messages.

Brokers compare hashes of tags, so tags are compared again here, on Arrow arrays. SQL92 filters are
evaluated here alone: every message is pulled, and rows are made of those that match. A record that
cannot be decoded fails the task, or is left out with a warning under failOnDataLoss=false.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.brokers.brokers import Brokers
from aerobee.pipeline.brokers.offsets import Queue, Range
from aerobee.pipeline.decode.columns import TOPIC_COLUMNS, choose
from aerobee.pipeline.decode.decode import Bad, Form, decode_parts, numbers
from aerobee.pipeline.decode.properties import property_matcher
from aerobee.pipeline.decode.record_starts import record_starts
from aerobee.pipeline.errors import BadData
from aerobee.pipeline.source.range_reader import PulledRecords, PullForm, RangeReader
from aerobee.pipeline.source.source_options import SourceOptions
from aerobee.protocol.message.record_layout import QUEUE_OFFSET_POSITION

log = logging.getLogger("aerobee.pipeline")

# Batches of 8-32 k rows are best (larger ones crowd the JVM); answers are joined up to these.
_JOIN_BYTES = 2 << 20
_BATCH_ROWS = 32_768


def read_range(options: SourceOptions, whole: Range) -> Iterator[pa.RecordBatch]:
    """The rows of one range. Raises PipelineError."""
    form = PullForm(
        options.group, options.expression, options.pull_batch, options.fail_on_data_loss
    )
    with Brokers(options.access, expected=True) as brokers:
        reader = RangeReader(brokers, whole, form)
        rows = _Rows(options, whole.queue)
        for chunks in _joined(reader.chunks()):
            yield from rows.batches(chunks)
        if reader.lost:
            log.warning("%s: %d offsets were lost and passed over", whole.queue, reader.lost)


def _joined(chunks: Iterator[PulledRecords]) -> Iterator[PulledRecords]:
    """Joins small chunks that follow each other."""
    waiting: list[PulledRecords] = []
    size = 0
    for chunk in chunks:
        if waiting and not (chunk.exact and waiting[-1].exact):
            yield _join(waiting)
            waiting, size = [], 0
        waiting.append(chunk)
        size += len(chunk.records)
        if size >= _JOIN_BYTES:
            yield _join(waiting)
            waiting, size = [], 0
    if waiting:
        yield _join(waiting)


def _join(chunks: list[PulledRecords]) -> PulledRecords:
    if len(chunks) == 1:
        return chunks[0]
    records = b"".join([chunk.records for chunk in chunks])
    return PulledRecords(records, chunks[0].low, chunks[-1].high, True)


class _Rows:
    """Makes the rows of one queue's records."""

    def __init__(self, options: SourceOptions, queue: Queue) -> None:
        self._options = options
        self._queue = queue
        columns = options.columns
        names = [column.name for column in columns]
        if options.tags and "tags" not in names:
            columns = (*columns, *choose(TOPIC_COLUMNS, ["tags"]))
        self._names = names if len(columns) > len(names) else None
        self._tags = pa.array(sorted(options.tags), pa.string())
        self._form = Form(
            columns,
            properties=options.properties_format,
            decompress=options.decompress,
            broker_name=queue.broker,
            system_properties=options.system_properties,
            matching=None if options.condition is None else property_matcher(options.condition),
        )

    def batches(self, chunk: PulledRecords) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk that count and match."""
        found = record_starts(chunk.records, 0, len(chunk.records))
        starts = found.positions
        if found.end != len(chunk.records):
            self._bad(chunk, f"byte {found.end} of an answer begins no record")
        if not chunk.exact:
            starts = starts[_inside(chunk, starts)]
        for first in range(0, len(starts), _BATCH_ROWS):
            part = starts[first : first + _BATCH_ROWS]
            try:
                for batch, bad in decode_parts(chunk.records, part, self._form):
                    chosen = self._chosen(chunk, batch, bad)
                    if chosen.num_rows:
                        yield chosen
            except ValueError as error:  # a body that cannot be inflated
                raise BadData(self._where(chunk, str(error))) from error

    def _chosen(
        self, chunk: PulledRecords, batch: pa.RecordBatch, bad: list[Bad]
    ) -> pa.RecordBatch:
        for one in bad:
            self._bad(chunk, f"the record at byte {one.position} of an answer {one.reason}")
        if self._options.tags:
            batch = batch.filter(pc.is_in(batch.column("tags"), value_set=self._tags))
        return batch if self._names is None else batch.select(self._names)

    def _bad(self, chunk: PulledRecords, what: str) -> None:
        text = self._where(chunk, what)
        if self._options.fail_on_data_loss:
            raise BadData(f"{text}; with failOnDataLoss=false it is left out")
        log.warning("left out: %s", text)

    def _where(self, chunk: PulledRecords, what: str) -> str:
        return f"{self._queue}, offsets {chunk.low} to {chunk.high - 1}: {what}"


def _inside(chunk: PulledRecords, starts: np.ndarray) -> np.ndarray:
    """Selects the records whose queue offset counts."""
    offsets = numbers(chunk.records, starts, QUEUE_OFFSET_POSITION, ">i8")
    inside: np.ndarray = (offsets >= chunk.low) & (offsets < chunk.high)
    return inside
