"""Parts of a log are read for a comparison, and records are found from any place in them."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from aerobee.protocol.headers.log_ranges import decode_sums, encode_sums, parts_of
from aerobee.store.disk.files import Files
from aerobee.store.log.replication import log_ranges
from aerobee.store.log.replication.log_ranges import LogRanges, RangeGone, RangeNotRead
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import SEGMENT, flip, log_segment, message, small_settings, whole


class Filled(NamedTuple):
    store: MessageStore
    ranges: LogRanges
    records: list[tuple[int, int]]
    root: Path

    @property
    def data(self) -> bytes:
        segments = self.store.log.segments.segments
        return b"".join([bytes(one.view[: one.wrote]) for one in segments])


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    store = MessageStore.open(small_settings(tmp_path))
    results = [store.log.put(message(b"x" * (n % 7 * 90), "Orders", n % 2)) for n in range(60)]
    records = [(one.log_offset, one.end) for one in results]
    yield Filled(store, store.make_log_ranges(), records, tmp_path)
    store.close()


def test_ranges_are_cut_to_what_the_log_has(filled: Filled) -> None:
    ranges, end = filled.ranges, filled.store.written
    assert (ranges.first, ranges.end, ranges.is_empty) == (0, end, False)
    assert ranges.cut(5, end + 100) == (5, end)
    assert ranges.cut(end, end + 100) == (end, end)
    assert ranges.cut(3, 3) == (3, 3)


def test_each_part_has_its_checksum(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ranges, "_READ_BYTES", 300)
    monkeypatch.setattr(log_ranges, "_STEP_BYTES", 2000)
    data = filled.data
    start, end = 7, len(data) - 3
    assert end > 3 * SEGMENT
    parts = parts_of(start, end, 9)
    assert (len(parts), parts[0][0], parts[-1][1]) == (9, start, end)
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    steps = filled.ranges.checksums(parts)
    taken = 0
    while (sums := log_ranges.next_step(steps)) is None:
        taken += 1
    assert sums == [zlib.crc32(data[low:high]) for low, high in parts]
    assert taken >= (end - start) // 2300
    assert decode_sums(encode_sums(sums)) == tuple(sums)


def test_parts_are_as_many_as_there_are_bytes_at_most() -> None:
    assert parts_of(4, 7, 1024) == [(4, 5), (5, 6), (6, 7)]
    assert parts_of(4, 4, 3) == []
    with pytest.raises(ValueError, match="no list"):
        decode_sums(b"123")


@pytest.mark.parametrize("look_back", [1, 200, 1 << 16])
def test_the_record_of_each_byte_is_found(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, look_back: int
) -> None:
    monkeypatch.setattr(log_ranges, "_LOOK_BACK_BYTES", look_back)
    ranges = filled.ranges
    for (start, end), (following, _) in zip(
        filled.records, [*filled.records[1:], (filled.store.written, 0)], strict=True
    ):
        for at in (start, start + 1, (start + end) // 2, end - 1):
            assert ranges.record_start(at) == start
        piece = ranges.piece_at(start)
        assert (piece.start, piece.end) == (start, end)
        assert piece.data == filled.store.reader.record_at(start)
        if end < following:
            assert ranges.record_start(following - 1) == end
            assert ranges.piece_at(end) == (end, following, None, True)


def test_a_damaged_record_is_found_and_passed(filled: Filled) -> None:
    # A record with a body, which another record follows in its segment.
    number = next(n for n in range(26, 60, 7) if filled.records[n + 1][0] == filled.records[n][1])
    start, end = filled.records[number]
    segment_start = start - start % SEGMENT
    flip(log_segment(filled.root, segment_start), start + 150 - segment_start)
    assert filled.ranges.record_start(end - 2) == start
    assert filled.ranges.piece_at(start) == (start, end, None, False)
    assert filled.ranges.record_start(end + 1) == end


def test_what_the_log_does_not_have_is_said(filled: Filled) -> None:
    ranges, end = filled.ranges, filled.store.written
    for read in (ranges.record_start, ranges.piece_at):
        with pytest.raises(RangeGone):
            read(end)
    with pytest.raises(RangeGone):
        whole(ranges.checksums([(end, end + 5)]))
    log_segment(filled.root).unlink()
    with pytest.raises(RangeGone, match="removed meanwhile"):
        whole(ranges.checksums([(0, 5)]))


def test_what_the_disk_does_not_give_is_an_error_of_the_store(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object) -> bytes:
        raise OSError(errno.ENXIO, "No such device or address")

    monkeypatch.setattr(Files, "read", fail)
    with pytest.raises(RangeNotRead, match="No such device"):
        whole(filled.ranges.checksums([(0, 5)]))
    with pytest.raises(RangeNotRead, match="No such device"):
        filled.ranges.record_start(5)
