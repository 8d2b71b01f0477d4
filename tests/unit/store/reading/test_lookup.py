"""Claims about wrong queue entries that a read comes to before the scrub does: nothing is lost."""

import errno
import struct
from contextlib import closing
from pathlib import Path

import pytest

from aerobee.protocol.message.record import Message, decode_records
from aerobee.store.disk.files import Files
from aerobee.store.message_store import MessageStore
from aerobee.store.reading import lookup
from aerobee.store.segments.results import GetStatus
from tests.unit.store.support import (
    SEGMENT,
    bodies,
    fill,
    flip,
    log_segment,
    message,
    queue_file,
    read_all,
    small_settings,
)

COUNT = 60
QUEUES = 3
SLOT = 8
UNIT = struct.Struct(">qiq")


def set_unit(root: Path, slot: int, unit: tuple[int, int, int], queue_id: int = 0) -> None:
    start = slot // 10 * 200
    with queue_file(root, queue_id=queue_id, start=start).open("r+b") as file:
        file.seek(slot * 20 - start)
        file.write(UNIT.pack(*unit))


def unit_of(root: Path, slot: int, queue_id: int = 0) -> tuple[int, int, int]:
    start = slot // 10 * 200
    data = queue_file(root, queue_id=queue_id, start=start).read_bytes()
    return UNIT.unpack_from(data, slot * 20 - start)  # type: ignore[return-value]


def pull(store: MessageStore, offset: int, count: int = 32) -> tuple[list[Message], int, bool]:
    """The messages of one pull, where the consumer goes on, whether it is to ask again there."""
    with store.reader.get("Orders", 0, offset, count) as result:
        found = [one for view in result.views for one in decode_records(bytes(view))]
        return found, result.next_offset, result.pending


def wrong_units(root: Path) -> dict[str, tuple[int, int, int]]:
    log_offset, size, code = unit_of(root, SLOT)
    other, same_size, _ = unit_of(root, SLOT, queue_id=1)
    assert same_size == size
    return {
        "zero": (0, 0, 0),
        "size": (log_offset, size ^ 4, code),
        "negative size": (log_offset, size - (1 << 31), code),
        "place": (log_offset ^ 64, size, code),
        "place of another queue's message": (other, size, code),
        "place of the next one": (unit_of(root, SLOT + 1)[0], size, code),
        "place outside": (log_offset + 2**40, size, code),
        "place below the log": (-8, size, code),
    }


KINDS = (
    "zero", "size", "negative size", "place", "place of another queue's message",
    "place of the next one", "place outside", "place below the log",
)  # fmt: skip


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "just started"])
@pytest.mark.parametrize("kind", KINDS)
def test_message_of_a_wrong_unit_is_served_at_its_offset_once(
    tmp_path: Path, kind: str, restarted: bool
) -> None:
    store = MessageStore.open(small_settings(tmp_path, scrub_bytes_per_second=0))
    made = fill(store, COUNT, queues=QUEUES)
    if restarted:
        assert store.close()
    right = unit_of(tmp_path, SLOT)
    set_unit(tmp_path, SLOT, wrong_units(tmp_path)[kind])
    if restarted:
        store = MessageStore.open(small_settings(tmp_path, scrub_bytes_per_second=0))
    with closing(store):
        found, offset = [], SLOT - 2
        while offset < COUNT // QUEUES:
            some, following, pending = pull(store, offset, 4)
            assert not pending
            assert [one.queue_offset for one in some] == list(range(offset, following))
            found += some
            offset = following
        assert [one.body for one in found] == made[(SLOT - 2) * QUEUES :: QUEUES]
        assert unit_of(tmp_path, SLOT) == right
        assert (store.stats.repaired_entries, store.stats.damaged_reads) == (1, 0)
        assert store.stats.damage_found == {"record": 0, "unit": 1, "unclear": 0, "index": 0}
        for queue_id in range(QUEUES):
            assert bodies(store, queue_id=queue_id) == made[queue_id::QUEUES]


@pytest.mark.parametrize("slot", [0, COUNT // QUEUES - 1], ids=["first", "last"])
def test_first_and_last_unit_of_a_queue_are_found(tmp_path: Path, slot: int) -> None:
    with closing(MessageStore.open(small_settings(tmp_path, scrub_bytes_per_second=0))) as store:
        made = fill(store, COUNT, queues=QUEUES)
        set_unit(tmp_path, slot, (0, 0, 0))
        assert bodies(store) == made[::QUEUES]


def test_many_wrong_units_are_found_by_one_search(tmp_path: Path) -> None:
    with closing(MessageStore.open(small_settings(tmp_path, scrub_bytes_per_second=0))) as store:
        made = fill(store, COUNT, queues=QUEUES)
        written = store.written
        for slot in range(2, 15):
            set_unit(tmp_path, slot, (0, 0, 0))
        assert bodies(store) == made[::QUEUES]
        assert store.stats.repaired_entries == 13
        assert store.stats.lookup_bytes < written


def test_long_search_goes_in_turns_and_nobody_goes_on_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neighbours of a queue with few messages lie far apart."""
    monkeypatch.setattr(lookup, "_TURN_BYTES", 2 * SEGMENT)
    monkeypatch.setattr(lookup, "_STEP_BYTES", 1024)
    with closing(MessageStore.open(small_settings(tmp_path, scrub_bytes_per_second=0))) as store:
        for number in range(5):
            store.log.put(message(b"%d" % number))
            for _ in range(200):
                store.log.put(message(b"x" * 100, "Other"))
        store.dispatch()
        set_unit(tmp_path, 2, (0, 0, 0))
        found, offset, _ = pull(store, 0)
        assert ([one.body for one in found], offset) == ([b"0", b"1"], 2)
        turns, pending = 0, True
        while pending:
            before = store.stats.lookup_bytes
            found, following, pending = pull(store, 2)
            assert store.stats.lookup_bytes - before <= 3 * SEGMENT
            turns += 1
            assert turns < 100
            if pending:
                assert (found, following) == ([], 2)
        assert turns > 3
        assert [one.body for one in found] == [b"2", b"3", b"4"]


def test_what_the_log_does_not_have_is_passed_over_and_looked_for_once(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    made = fill(store, COUNT, queues=QUEUES)
    victim = read_all(store)[SLOT]
    assert store.close()
    start = victim.log_offset // SEGMENT * SEGMENT
    with log_segment(tmp_path, start).open("r+b") as file:
        file.seek(victim.log_offset - start)
        file.write(bytes(victim.size))
    set_unit(tmp_path, SLOT, (0, 0, 0))
    with closing(MessageStore.open(small_settings(tmp_path, scrub_bytes_per_second=0))) as store:
        expected = [body for body in made[::QUEUES] if body != victim.body]
        assert bodies(store) == expected
        looked = store.stats.lookup_bytes
        assert looked
        assert bodies(store) == expected
        assert store.stats.lookup_bytes == looked
        assert store.stats.damaged_reads == 2


def test_message_of_a_deleted_topic_does_not_take_a_lost_one_s_place(tmp_path: Path) -> None:
    """Numbers began anew; the first message of the new numbering is damaged, its unit too."""
    settings = small_settings(tmp_path, scrub_bytes_per_second=0)
    store = MessageStore.open(settings)
    fill(store, 12)
    store.delete_topic("Orders")
    new = [b"new %d" % number for number in range(4)]
    places = [store.log.put(message(body)).log_offset for body in new]
    store.dispatch()
    assert bodies(store) == new
    assert store.close()
    start = places[0] // SEGMENT * SEGMENT
    flip(log_segment(tmp_path, start), places[0] - start + 90)
    set_unit(tmp_path, 0, (0, 0, 0))
    with closing(MessageStore.open(settings)) as store:
        assert bodies(store) == new[1:]


def test_unit_that_cannot_be_written_is_served_all_the_same(tmp_path: Path) -> None:
    class FullDisk(Files):
        full = False

        def write(self, fd: int, position: int, data: bytes | bytearray | memoryview) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "no space")
            super().write(fd, position, data)

    files = FullDisk()
    settings = small_settings(tmp_path, scrub_bytes_per_second=0)
    with closing(MessageStore.open(settings, files)) as store:
        made = fill(store, COUNT, queues=QUEUES)
        set_unit(tmp_path, SLOT, (0, 0, 0))
        files.full = True
        assert bodies(store) == made[::QUEUES]
        assert bodies(store) == made[::QUEUES]
        assert store.reader.get("Orders", 0, SLOT, 1).status is GetStatus.FOUND
        files.full = False


def test_delayed_message_whose_unit_is_wrong_is_delivered(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, scrub_bytes_per_second=0)
    with closing(MessageStore.open(settings)) as store:
        for number in range(4):
            store.log.put(
                message(
                    b"%d" % number,
                    "SCHEDULE_TOPIC_XXXX",
                    2,
                    more={"DELAY": "3", "REAL_TOPIC": "Orders", "REAL_QID": "0"},
                )
            )
        store.dispatch()
        with queue_file(tmp_path, "SCHEDULE_TOPIC_XXXX", 2).open("r+b") as file:
            file.seek(20)
            file.write(bytes(20))
        found, offset = [], 0
        for _ in range(10):
            look = store.delays.look(3, offset, 1 << 50)
            assert look.passed_over == 0
            found += [due.message.body for due in look.due]
            offset = look.next_offset
        assert found == [b"0", b"1", b"2", b"3"]
