"""Reads the log of an audit once, from front to back, and hands each record on.

Its claims to slots go to the queues, in batches, its keys to the index, singly. Faults of the log
alone are found here: times that go back, a CRC property that does not match, the damaged ranges, an
end that is not where it should be.
"""

import os
from collections.abc import Callable, Sequence

from aerobee.protocol.message.filler import is_filler
from aerobee.protocol.message.properties import PROPERTY_CRC
from aerobee.protocol.message.record_check import Checked, log_offset_of, store_ms_of
from aerobee.protocol.message.record_layout import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from aerobee.protocol.message.record_seal import SEAL_BYTES, is_intact
from aerobee.protocol.names import is_light
from aerobee.store.at_rest.audit.index_audit import IndexAudit
from aerobee.store.at_rest.audit.queue_audit import LostByGap, QueueAudit
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.dispatch.derived import Derivation, by_queue
from aerobee.store.inspect.audit_report import Counts, Findings
from aerobee.store.inspect.log_files import FileReporter
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.log.scan.log_scanner import Batch, LogScanner
from aerobee.store.queues.delay_levels import DelayLevels

_SEAL = f"{PROPERTY_CRC}\x01".encode()
_NAMES_SHOWN = 8


class LogAudit:
    """One reading of a log."""

    def __init__(
        self,
        store: StoreFiles,
        scan: LogScanner,
        reporter: FileReporter,
        findings: Findings,
        counts: Counts,
    ) -> None:
        self._store = store
        self._scan = scan
        self._reporter = reporter
        self._segment_bytes = segment_bytes = store.sizes.segment_bytes
        self._files = {file.start // segment_bytes: file for file in store.log.files}
        self._findings = findings
        self._counts = counts
        # The store time before each gap in its segment, by the gap's start; 0 without a record
        # there.
        self.times: dict[int, int] = {}
        # Store time of the last record, and the end of its segment.
        self._newest_ms = 0
        self._file_end = 0
        # Log offset after the last file.
        self._file_limit = max((file.start + segment_bytes for file in store.log.files), default=0)
        levels = DelayLevels(store.settings.message_delay_levels)
        # Queues by topic and queue id alone.
        self._derivation = Derivation[tuple[str, int]](
            {}, lambda *key: key, self._further_queue, levels
        )

    def run(self, queues: QueueAudit, index: IndexAudit, progress: Callable[[int], None]) -> None:
        """Read all of it for both; `progress` gets the place after every batch."""
        scan, counts = self._scan, self._counts
        progress(scan.end)
        for batch in scan.batches(0):
            if len(scan.gaps) > len(self.times):
                self.note_times()
            self._check_times(batch)
            entries = self._derivation.entries(batch.records)
            queues.feed(by_queue(entries))
            fillers = self._count_transactions(batch.records)
            last = -1
            for _, _, log_offset, _, _, keys, store_ms, topic in entries:
                if log_offset in fillers:
                    index.filler(log_offset)
                    self._filler(log_offset, fillers[log_offset])
                elif log_offset != last:  # a message's further entries follow its own
                    index.feed(topic, keys, log_offset, store_ms)
                last = log_offset
            if _SEAL in bytes(batch.buffer):
                self._check_seals(batch)
            counts.records += len(batch.records)
            progress(scan.end)
        self.note_times()

    def _count_transactions(self, records: Sequence[Checked]) -> dict[int, int]:
        """Count half messages and rollbacks; return log offset and size of the fillers."""
        counts = self._counts
        fillers: dict[int, int] = {}
        for log_offset, size, _, _, sys_flag, _, topic, *_ in records:
            transaction = sys_flag & SYS_TRANSACTION_MASK
            if transaction == SYS_TRANSACTION_PREPARED:
                counts.half_messages += 1
            elif transaction == SYS_TRANSACTION_ROLLBACK and is_filler(topic, sys_flag):
                counts.fillers += 1
                fillers[log_offset] = size
            elif transaction == SYS_TRANSACTION_ROLLBACK:
                counts.rollbacks += 1
        return fillers

    def _check_times(self, batch: Batch) -> None:
        """Store times never go back within a segment; a batch lies in one."""
        times = list(map(store_ms_of, batch.records))
        first = log_offset_of(batch.records[0])
        if first >= self._file_end:
            self._file_end = (first // self._segment_bytes + 1) * self._segment_bytes
            self._newest_ms = times[0]
        if times[0] < self._newest_ms or times != sorted(times):
            newest_ms = self._newest_ms
            for record, store_ms in zip(batch.records, times, strict=True):
                if store_ms < newest_ms:
                    self._time_back(log_offset_of(record), store_ms, newest_ms)
                newest_ms = store_ms
        self._newest_ms = times[-1]
        counts = self._counts
        counts.first_store_ms = counts.first_store_ms or times[0]
        counts.last_store_ms = max(counts.last_store_ms, max(times))

    def note_times(self) -> None:
        """Remember the time of the record before each new gap."""
        for gap in self._scan.gaps[len(self.times) :]:
            self.times[gap.start] = self._newest_ms if gap.start < self._file_end else 0

    def _check_seals(self, batch: Batch) -> None:
        shift = batch.at - log_offset_of(batch.records[0])
        for log_offset, size, *_ in batch.records:
            end = log_offset + size + shift
            if batch.buffer[end - SEAL_BYTES : end - SEAL_BYTES + len(_SEAL)] == _SEAL:
                data = bytes(batch.buffer[log_offset + shift : end])
                if not is_intact(data):
                    self._say(
                        "record-seal",
                        log_offset,
                        f"the record at {log_offset} does not match the CRC of the whole of it at "
                        "its end",
                    )

    def _time_back(self, log_offset: int, store_ms: int, before_ms: int) -> None:
        self._say(
            "time-back",
            log_offset,
            f"stored at {store_ms}, {before_ms - store_ms} ms before the record in front of it",
        )

    def _filler(self, log_offset: int, size: int) -> None:
        self._say("filler", log_offset, f"{size} bytes at {log_offset} stand for lost records")

    def _further_queue(self, name: str, queue_id: int) -> tuple[str, int] | None:
        """The queue that a message of `queue_id` was multi-dispatched to under that name.

        None if there is no such queue, and the settings do not ask for it.
        """
        settings = self._store.settings
        keys = [(name, 0), (name, queue_id)] if is_light(name) else [(name, queue_id)]
        if not settings.lmq_enabled:
            keys.reverse()
        known = [key for key in keys if key in self._store.queues]
        return known[0] if known else keys[0] if settings.multi_dispatch else None

    # --- when the log has been read ---------------------------------------------------------

    def judge(self, lost: LostByGap) -> None:
        """Report findings about gaps and about the end; `lost` has the messages that entries name
        there."""
        scan = self._scan
        misplaced = {file.start: own for file, own in self._reporter.misplaced}
        for file, own in self._reporter.misplaced:
            self._findings.add(
                "segment-misplaced",
                file.path,
                0,
                f"its records say that they belong to the file {own:020d}",
                log_offset=file.start,
            )
        for gap in scan.gaps:
            self._counts.lost_bytes += gap.end - gap.start
            if gap.start in misplaced:
                continue  # already reported for the file
            is_short = gap.end > self._file_limit
            known = self._store.marks.knows_gap(gap.start, gap.end)
            self._say(
                "log-short" if is_short else "record-damaged",
                gap.start,
                f"{gap.end - gap.start} bytes from {gap.start} to {gap.end}: {gap.reason}"
                f"{_names(lost.named.get(gap.start, []))}"
                f"{'; known to the broker' if known else ''}",
            )
        for file in self._reporter.not_closed_files:
            self._findings.add(
                "segment-not-closed", file.path, None, "its last record goes up to its end"
            )
        for file in self._reporter.spare:
            self._findings.add("segment-spare", file.path, None, "holds nothing but zeros")
        for file, position, high in self._reporter.tail:
            if file.start not in misplaced:
                self._say(
                    "log-torn" if self._store.left_open else "log-trailing",
                    file.start + position,
                    f"{high - position} bytes behind the log's end {scan.end} are not zero "
                    f"({scan.end_reason})",
                )

    def _say(self, kind: str, log_offset: int, what: str) -> None:
        file = self._files.get(log_offset // self._segment_bytes)
        position = log_offset % self._segment_bytes
        directory = self._store.layout.log_directories[0]
        missing = os.path.join(directory, segment_name(log_offset - position))
        path = missing if file is None else file.path
        self._findings.add(kind, path, position, what, log_offset=log_offset)


def _names(named: Sequence[tuple[str, int, int]]) -> str:
    """The messages that were there, by the entries that are left."""
    if not named:
        return ""
    texts = [
        f"{queue} {first}" if end == first + 1 else f"{queue} {first} to {end - 1}"
        for queue, first, end in named[:_NAMES_SHOWN]
    ]
    more = f" and {len(named) - _NAMES_SHOWN} more" if len(named) > _NAMES_SHOWN else ""
    return f"; held message {', '.join(texts)}{more}"
