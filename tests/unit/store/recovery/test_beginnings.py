"""Claims about what is gone in front: first segments, first queue files.

Deletion takes away the same things, and says so in the offsets file before they go.
"""

import shutil
from pathlib import Path

import pytest

from aerobee.protocol.checksum import crc32c
from aerobee.store.disk.files import Files
from aerobee.store.disk.offsets_file import OffsetsFile
from aerobee.store.message_store import MessageStore
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    Hours,
    fill_segments,
    names,
    open_store,
    run,
    still,
)
from tests.unit.store.support import SEGMENT, adopt, as_copy, bodies, log_segment, queue_file

_UNKNOWN = {"log_begins": -1, "queues_begin": -1}


def deleted(root: Path, clock: Hours) -> tuple[MessageStore, list[bytes]]:
    """An open store that has lost its first four segments and what queues said of them; the
    messages it still has."""
    store = open_store(root, clock)
    fill_segments(store, 4)
    clock.time_ms += 97 * HOUR_MS
    fill_segments(store, 9)
    delete(store)
    assert names(store)[0] >= 3 * SEGMENT
    return store, bodies(store)


def delete(store: MessageStore) -> None:
    """Everything that has expired."""
    store.retention.arm()
    run(store)


def queue_starts(root: Path) -> list[int]:
    folder = root / "consumequeue" / "Orders" / "0"
    return sorted(int(path.name) for path in folder.iterdir())


@pytest.mark.parametrize("how", ["noted", "not noted", "no offsets file"])
@pytest.mark.parametrize("count", [1, 2])
def test_first_queue_files_that_are_gone_are_made_again_although_the_log_begins_later(
    tmp_path: Path, how: str, count: int
) -> None:
    store, kept = deleted(tmp_path / "s", clock := Hours())
    assert store.close()
    starts = queue_starts(tmp_path / "s")
    assert starts[0] > 0
    for start in starts[:count]:
        queue_file(tmp_path / "s", start=start).unlink()
    if how == "not noted":
        adopt(tmp_path / "s", **_UNKNOWN)
    if how == "no offsets file":
        (tmp_path / "s" / "offsets").unlink()
    store = open_store(tmp_path / "s", clock)
    assert bodies(store) == kept
    store.close()
    assert queue_starts(tmp_path / "s") == starts


def test_it_is_said_that_first_queue_files_were_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = deleted(tmp_path, clock := Hours())
    assert store.close()
    queue_file(tmp_path, start=queue_starts(tmp_path)[0]).unlink()
    open_store(tmp_path, clock).close()
    assert "the first files of a queue are gone" in caplog.text


def test_deletion_itself_costs_no_start_a_walk(tmp_path: Path) -> None:
    store, kept = deleted(tmp_path / "s", clock := Hours())
    still(store)
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    as_copy(tmp_path / "killed")
    assert store.close()
    for root in (adopt(tmp_path / "killed"), tmp_path / "s"):
        store = open_store(root, clock)
        assert store.recovery.read_from > store.recovery.log_start
        assert bodies(store) == kept
        store.close()


class Leaves(Files):
    """Files that stay, as if the process had died before they went."""

    def remove(self, path: str) -> None:
        if "consumequeue" not in path:
            super().remove(path)


@pytest.mark.parametrize("queues", [1, 4])
def test_crash_before_the_files_go_is_no_loss(
    tmp_path: Path, queues: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hours()
    store = open_store(tmp_path / "s", clock, Leaves())
    fill_segments(store, 4, queues=queues)
    clock.time_ms += 97 * HOUR_MS
    fill_segments(store, 9, queues=queues)
    delete(store)
    still(store)
    kept = [bodies(store, queue_id=number) for number in range(queues)]
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    store.close()
    store = open_store(adopt(tmp_path / "killed"), clock)
    assert [bodies(store, queue_id=number) for number in range(queues)] == kept
    assert store.recovery.read_from > store.recovery.log_start
    assert "gone" not in caplog.text
    store.close()


def test_beginnings_are_noted_before_the_files_go(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    class Watched(Files):
        def remove(self, path: str) -> None:
            if "consumequeue" in path or "commitlog" in path:
                noted = OffsetsFile(self, str(tmp_path)).load()
                assert noted is not None
                seen.append((path, noted.log_begins, noted.queues_begin))
            super().remove(path)

    clock = Hours()
    store = open_store(tmp_path, clock, Watched())
    fill_segments(store, 4)
    clock.time_ms += 97 * HOUR_MS
    fill_segments(store, 9)
    delete(store)
    begins = store.min_log_offset, store._parts.queues.beginnings()
    assert seen
    for path, log_begins, queues_begin in seen:
        assert log_begins == begins[0]
        assert "commitlog" in path or queues_begin == begins[1]
    store.close()


def test_first_segments_that_nobody_deleted_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = deleted(tmp_path, clock := Hours())
    start = names(store)[0]
    assert store.close()
    log_segment(tmp_path, start).unlink()
    store = open_store(tmp_path, clock)
    assert store.recovery.lost_front == (start, start + SEGMENT)
    assert f"from={start} to={start + SEGMENT}" in caplog.text
    assert f"{start}..{start + SEGMENT}" in store.recovery.summary()
    store.close()
    caplog.clear()
    store = open_store(tmp_path, clock)
    assert store.recovery.lost_front is None  # said once
    assert "from=" not in caplog.text
    store.close()


def test_segments_that_deletion_took_are_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = deleted(tmp_path, clock := Hours())
    assert store.close()
    store = open_store(tmp_path, clock)
    assert store.recovery.lost_front is None
    store.close()
    adopt(tmp_path, log_begins=-1)
    store = open_store(tmp_path, clock)
    assert store.recovery.lost_front is None  # a file of before there was the field
    store.close()


def test_file_without_the_fields_is_read(tmp_path: Path) -> None:
    store, _ = deleted(tmp_path, Hours())
    assert store.close()
    file = OffsetsFile(Files(), str(tmp_path))
    offsets = file.load()
    assert offsets is not None
    line = Path(file.path).read_bytes().partition(b"\n")[0]
    older = line.partition(b',"log_begins"')[0] + b',"version":1}\n'
    Path(file.path).write_bytes(older + b"crc32c=%08x\n" % crc32c(older))
    found = OffsetsFile(Files(), str(tmp_path)).load()
    assert found is not None
    assert (found.log_begins, found.queues_begin) == (-1, -1)
    assert found.synced == offsets.synced
