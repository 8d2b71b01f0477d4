"""Claims about our own offsets file: whole or not there, and worthless for another directory."""

import errno
from pathlib import Path

import msgspec
import pytest

from aerobee.store.disk.files import Files
from aerobee.store.disk.offsets_file import (
    DerivedMarks,
    Identity,
    Offsets,
    OffsetsFile,
    decode,
    encode,
)
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import fill, small_settings

SOME = Offsets(
    flushed=4096,
    last_store_ms=1_700_000_000_000,
    synced=DerivedMarks(4000, 30),
    live=DerivedMarks(4096, 31),
    indexed=4000,
    index_files=("20260101000000000",),
    gaps=((100, 200), (3000, 3300)),
    identity=Identity("boot", 12, 34),
    poisoned=True,
)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    OffsetsFile(Files(), str(tmp_path)).save(SOME)
    assert OffsetsFile(Files(), str(tmp_path)).load() == SOME
    assert [path.name for path in tmp_path.iterdir()] == ["offsets"]


def test_any_flipped_bit_and_any_cut_is_noticed() -> None:
    data = encode(SOME)
    assert decode(data) == SOME
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            assert decode(bytes(damaged)) is None, (position, bit)
        assert decode(data[:position]) is None


def test_file_of_another_version_is_not_believed() -> None:
    assert decode(encode(msgspec.structs.replace(SOME, version=2))) is None


def test_missing_file_and_directory_in_its_place_are_no_offsets(tmp_path: Path) -> None:
    assert OffsetsFile(Files(), str(tmp_path)).load() is None
    (tmp_path / "offsets").mkdir()
    assert OffsetsFile(Files(), str(tmp_path)).load() is None


def test_same_content_is_not_written_again(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    file = OffsetsFile(files, str(tmp_path))
    file.save(SOME)
    file.save(SOME)
    assert files.count("rename") == 1


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory"])
def test_failed_save_leaves_the_old_or_the_new_file(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles(tmp_path)
    file = OffsetsFile(files, str(tmp_path))
    file.save(SOME)
    newer = msgspec.structs.replace(SOME, flushed=5000)
    files.fail(operation, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        file.save(newer)
    files.power_cut(tmp_path / "cut")
    assert OffsetsFile(Files(), str(tmp_path / "cut")).load() in (SOME, newer)
    files.heal()
    file.save(newer)
    assert OffsetsFile(Files(), str(tmp_path)).load() == newer


def test_full_disk_costs_the_file_and_nothing_else(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files)
    files.fail("write", errno.ENOSPC, "offsets.tmp")
    fill(store, 5)
    store._queue_flusher.flush(0)
    assert store.not_writable_reason() is None
    files.heal()
    assert store.close()


def test_failed_sync_of_the_file_stops_the_store(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), files)
    files.fail("sync", errno.EIO, "offsets.tmp")
    fill(store, 5)
    assert not store._queue_flusher.flush(0)
    assert "offsets file" in (store.not_writable_reason() or "")
    assert not store.close()
