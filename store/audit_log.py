"""Reads the log of an audit once, from front to back, and hands each record on.

To the queues go its claims to slots, in batches, to the index its keys, one by one. What can be
said of the log alone is found here: times that go back, a CRC property that does not match, the
damaged ranges, an end that is not where it should be.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aerobee.protocol.hashing import tag_code
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.protocol.properties import (
    PROPERTY_CRC,
    PROPERTY_MULTI_QUEUE_OFFSET,
    PROPERTY_TAGS,
    decode_properties,
    further_queues,
    index_keys,
)
from aerobee.protocol.record import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    RecordHead,
)
from aerobee.protocol.record_seal import SEAL_BYTES, is_intact
from aerobee.store.audit_filler import is_filler
from aerobee.store.audit_layout import FoundFile
from aerobee.store.audit_queue_pass import LostByGap
from aerobee.store.audit_queues import Claim
from aerobee.store.audit_report import Counts, Findings
from aerobee.store.audit_scan import LogScan
from aerobee.store.audit_state import KnownMarks
from aerobee.store.delay_levels import DelayLevels
from aerobee.store.mapped_file import segment_name

#: Claims by (topic, queue id), each queue's in log order.
Claims = dict[tuple[str, int], list[Claim]]

_BATCH = 16_384
_SEAL = f"{PROPERTY_CRC}\x01".encode()
_NAMES_SHOWN = 8


class Keyed(Protocol):
    """Takes a record's keys."""

    def __call__(
        self, topic: str, keys: tuple[str, ...], log_offset: int, store_ms: int
    ) -> None: ...


class LogAudit:
    """One reading of a log."""

    def __init__(
        self,
        directory: str,
        scan: LogScan,
        files: Sequence[FoundFile],
        segment_bytes: int,
        levels: DelayLevels,
        findings: Findings,
        counts: Counts,
        further: Callable[[str, int], tuple[str, int] | None],
    ) -> None:
        self._directory = directory
        self._scan = scan
        self._segment_bytes = segment_bytes
        self._files = {file.start // segment_bytes: file for file in files}
        self._levels = levels
        self._findings = findings
        self._counts = counts
        # By a gap's start: the store time before it in its segment, 0 without a record there.
        self.times: dict[int, int] = {}
        # Which queue a name in a message of that queue id means; None for one not to be asked for.
        self._further = further

    def run(
        self,
        claimed: Callable[[Claims], None],
        keyed: Keyed,
        filled: Callable[[int], None],
        progress: Callable[[int], None],
    ) -> None:
        """Read it all. Fillers go to `filled`, after every batch `progress` is told where."""
        counts, prepared = self._counts, SYS_TRANSACTION_PREPARED
        progress(self._scan.end)
        claims: Claims = {}
        file_end = newest_ms = since = gaps_seen = 0
        gaps = self._scan.gaps
        for log_offset, head, buffer, index in self._scan.records():
            store_ms = head.store_timestamp_ms
            if len(gaps) > gaps_seen:
                gaps_seen = self._note_times(gaps_seen, file_end, newest_ms)
            if log_offset >= file_end:
                file_end = (log_offset // self._segment_bytes + 1) * self._segment_bytes
            elif store_ms < newest_ms:
                self._time_back(log_offset, store_ms, newest_ms)
            newest_ms = store_ms
            counts.records += 1
            end = index + head.size
            if buffer[end - SEAL_BYTES : end - SEAL_BYTES + len(_SEAL)] == _SEAL:
                self._check_seal(log_offset, buffer[index:end])
            properties_at = index + head.properties_position
            properties = decode_properties(
                buffer[properties_at : properties_at + head.properties_length]
            )
            transaction = head.sys_flag & SYS_TRANSACTION_MASK
            keys: tuple[str, ...] = ()
            if not transaction & prepared:
                self._claim(claims, log_offset, head, properties)
                keys = index_keys(properties)
            elif transaction == SYS_TRANSACTION_ROLLBACK:
                if is_filler(head):
                    counts.fillers += 1
                    filled(log_offset)
                    self._filler(log_offset, head.size)
                    continue
                counts.rollbacks += 1
            else:
                counts.half_messages += 1
                keys = index_keys(properties)
            keyed(head.topic, keys, log_offset, store_ms)
            since += 1
            if since == _BATCH:
                since = 0
                claimed(claims)
                claims = {}
                progress(log_offset)
            counts.last_store_ms = max(counts.last_store_ms, store_ms)
            counts.first_store_ms = counts.first_store_ms or store_ms
        claimed(claims)
        self._note_times(gaps_seen, file_end, newest_ms)
        progress(self._scan.end)

    def _claim(
        self, claims: Claims, log_offset: int, head: RecordHead, properties: Mapping[str, str]
    ) -> None:
        tags_code = tag_code(properties.get(PROPERTY_TAGS, ""))
        if head.topic == SCHEDULE_TOPIC:
            tags_code = self._levels.tags_code(
                head.topic, properties, head.store_timestamp_ms, tags_code
            )
        key = (head.topic, head.queue_id)
        claim = Claim(head.queue_offset, log_offset, head.size, tags_code)
        known = claims.get(key)
        if known is None:
            claims[key] = [claim]
        else:
            known.append(claim)
        if PROPERTY_MULTI_QUEUE_OFFSET in properties:
            others = {self._further(name, key[1]): n for name, n in further_queues(properties)}
            for other, offset in others.items():
                if other is not None and other != key:
                    claims.setdefault(other, []).append(claim._replace(offset=offset))

    def _note_times(self, seen: int, file_end: int, newest_ms: int) -> int:
        """Remember the time of the record before each new gap; how many gaps there are."""
        gaps = self._scan.gaps
        for gap in gaps[seen:]:
            self.times[gap.start] = newest_ms if gap.start < file_end else 0
        return len(gaps)

    def _check_seal(self, log_offset: int, record: bytes) -> None:
        if not is_intact(record):
            self._say(
                "record-seal",
                log_offset,
                f"the record at {log_offset} does not match the CRC of the whole of it at its end",
            )

    def _time_back(self, log_offset: int, store_ms: int, before_ms: int) -> None:
        self._say(
            "time-back",
            log_offset,
            f"stored at {store_ms}, {before_ms - store_ms} ms before the record in front of it",
        )

    def _filler(self, log_offset: int, size: int) -> None:
        self._say("filler", log_offset, f"{size} bytes at {log_offset} stand for lost records")

    # --- when the log has been read ---------------------------------------------------------

    def judge(self, lost: LostByGap, marks: KnownMarks, *, clean_stop: bool) -> None:
        """Findings about gaps and about the end; `lost` says which messages units name there."""
        scan = self._scan
        misplaced = {file.start: own for file, own in scan.misplaced}
        for file, own in scan.misplaced:
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
                continue  # said already, of the file
            self._say(
                "record-damaged",
                gap.start,
                f"{gap.end - gap.start} bytes from {gap.start} to {gap.end}: {gap.reason}"
                f"{_names(lost.named.get(gap.start, []))}"
                f"{'; known to the broker' if marks.knows_gap(gap.start, gap.end) else ''}",
            )
        for file in scan.not_closed:
            self._findings.add(
                "segment-not-closed", file.path, None, "its last record goes up to its end"
            )
        for file in scan.spare:
            self._findings.add("segment-spare", file.path, None, "holds nothing but zeros")
        for file, position, high in scan.tail:
            if file.start not in misplaced:
                self._say(
                    "log-trailing" if clean_stop else "log-torn",
                    file.start + position,
                    f"{high - position} bytes behind the log's end {scan.end} are not zero "
                    f"({scan.end_reason})",
                )

    def _say(self, kind: str, log_offset: int, what: str) -> None:
        file = self._files.get(log_offset // self._segment_bytes)
        position = log_offset % self._segment_bytes
        path = os.path.join(self._directory, segment_name(log_offset - position))
        if file is not None:
            path = file.path
        self._findings.add(kind, path, position, what, log_offset=log_offset)


def _names(named: Sequence[tuple[str, int, int]]) -> str:
    """Which messages were there, as units still say."""
    if not named:
        return ""
    texts = [
        f"{queue} {first}" if end == first + 1 else f"{queue} {first} to {end - 1}"
        for queue, first, end in named[:_NAMES_SHOWN]
    ]
    more = f" and {len(named) - _NAMES_SHOWN} more" if len(named) > _NAMES_SHOWN else ""
    return f"; held message {', '.join(texts)}{more}"
