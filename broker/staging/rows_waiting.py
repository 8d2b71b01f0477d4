"""Where staged rows wait to be published (`Waits` of second_step)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from aerobee.broker.second_step.second_step import STAGED
from aerobee.broker.staging.stage_table import Stage, StageTable
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.headers.stages import chunk_runs
from aerobee.protocol.message.record import decode_record
from aerobee.store.message_store import MessageStore

_STEP: Final = 64


class StagedWaiting:
    """In the chunks of stages, whether an intent names them or not. A chunk counts as long as one
    of its rows has not been published."""

    kind = STAGED

    def __init__(self, table: StageTable, store: MessageStore) -> None:
        self._table = table
        self._record_at = store.reader.record_at

    def oldest(self) -> Iterator[int | None]:
        """See `Waits.oldest`."""
        for number, stage in enumerate(list(self._table.stages.values())):
            # The first that came is the oldest.
            found = next(iter(stage.chunks.values()), None)
            if found is not None or number % _STEP == 0:
                yield None if found is None else found.log_offset

    def places(self) -> Iterator[int | None]:
        """See `Waits.places`."""
        for stage in list(self._table.stages.values()):
            yield from _unpublished(stage)

    def sizes(self) -> Iterator[int]:
        """See `Waits.sizes`."""
        yield self._table.chunks

    def found(self, topic: str, log_offset: int) -> Iterable[tuple[int, int]]:
        """See `Waits.found`."""
        record = self._record_at(log_offset)
        if record is None or topic.encode() not in record:
            return ()
        try:
            runs = chunk_runs(decode_record(record).body)
            return [(run.queue_id, run.rows) for run in runs if run.topic == topic]
        except (BadRequest, CorruptRecord):
            return ()


def _unpublished(stage: Stage) -> Iterator[int | None]:
    """The chunks' log offsets, None for each whose rows are all published."""
    behind = 0
    for number in sorted(stage.chunks):
        chunk = stage.chunks[number]
        behind += chunk.rows
        yield chunk.log_offset if behind > stage.published else None
