"""Random stores, cut off at random places: claims that must hold of each of them afterwards.

How many a run makes is in tests/campaign.py; they come from the run's seed.
"""

import random
import shutil
from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from tests import campaign
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import (
    SEGMENT,
    ManualClock,
    kill_image,
    message,
    read_all,
    small_settings,
    tree,
)

NUMBERS = range(campaign.size("random stores"))
TOPICS = ("Orders", "%RETRY%g", "x")
Place = tuple[str, int, int]


class Writer:
    """Puts random messages and remembers which are written and which durable."""

    def __init__(self, root: Path, rng: random.Random, files: FaultyFiles, *, sync: bool) -> None:
        self.rng = rng
        self.sync = sync
        self.clock = ManualClock()
        self.settings = small_settings(
            root,
            flush_disk_type="SYNC_FLUSH" if sync else "ASYNC_FLUSH",
            flush_interval_ms=3_600_000,
            flush_timed=False,
            flush_least_pages=0,
            consume_queue_flush_interval_ms=3_600_000,
            max_message_bytes=100_000,
        )
        self.store = MessageStore.open(self.settings, files=files, clock=self.clock)
        self.written: dict[Place, tuple[bytes, int]] = {}
        self.counter = 0

    def put(self) -> None:
        rng = self.rng
        self.clock.time_ms += rng.choice((0, 1, 700, -50))
        topic, queue_id = rng.choice(TOPICS), rng.randrange(3)
        count = rng.choice((1, 1, 1, 4))
        sys_flag = rng.choice((0, 0, 0, 4, 8, 12)) if count == 1 else 0
        made = []
        for _ in range(count):
            self.counter += 1
            body = b"%06d" % self.counter + rng.randbytes(rng.choice((0, 10, 200, 800)))
            made.append(
                message(body, topic, queue_id, unique=f"U{self.counter}", sys_flag=sys_flag)
            )
        result = self.store.log.put_batch(made) if count > 1 else self.store.log.put(made[0])
        if sys_flag not in (4, 12):
            for number, one in enumerate(made):
                end = result.end  # of a batch all are acknowledged together
                self.written[topic, queue_id, result.queue_offset + number] = (one.body, end)

    def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.75:
            self.put()
        elif choice < 0.9:
            self.store.dispatch()
        elif choice < 0.97:
            self.store.request_flush()
            assert self.store.wait_durable(self.store.written, 10)
        else:
            self.store._queue_flusher.flush(self.rng.choice((0, 2)))

    def durable(self) -> dict[Place, bytes]:
        """The records that a power cut must not take."""
        durable = self.store.durable
        return {place: body for place, (body, end) in self.written.items() if end <= durable}


def contents(store: MessageStore) -> dict[Place, bytes]:
    """All that can be read, after checking that each queue is without gaps."""
    found: dict[Place, bytes] = {}
    for topic, queue_id in store.queues():
        messages = read_all(store, topic, queue_id)
        offsets = [one.queue_offset for one in messages]
        assert offsets == list(range(len(offsets)))
        assert store.max_offset(topic, queue_id) == len(offsets)
        found |= {(topic, queue_id, one.queue_offset): one.body for one in messages}
    return found


def check_rebuild(root: Path, settings_root: Path) -> None:
    """Queues made again from the log are the ones that were there."""
    before = tree(root, "consumequeue")
    again = kill_image(root, settings_root)
    shutil.rmtree(again / "consumequeue")
    shutil.rmtree(again / "index", ignore_errors=True)
    assert MessageStore.open(small_settings(again)).close()
    trimmed = {name: data.rstrip(b"\0") for name, data in before.items()}
    rebuilt = {name: data.rstrip(b"\0") for name, data in tree(again, "consumequeue").items()}
    assert {n: d for n, d in rebuilt.items() if d} == {n: d for n, d in trimmed.items() if d}


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("number", NUMBERS)
def test_random_store_survives_kills_and_power_cuts(
    tmp_path: Path, number: int, sync: bool, seed: int
) -> None:
    rng = random.Random(f"{seed} {number} {sync}")
    root = tmp_path / "store"
    root.mkdir()
    files = FaultyFiles(root)
    writer = Writer(root, rng, files, sync=sync)
    for cut in range(4):
        for _ in range(rng.randrange(1, 60)):
            writer.step()
        image = kill_image(root, tmp_path / f"kill{cut}")
        store = MessageStore.open(small_settings(image))
        assert store.written == writer.store.written
        assert contents(store) == {place: body for place, (body, _) in writer.written.items()}
        assert store.close()
        check_rebuild(image, tmp_path / f"rebuilt{cut}")

        image = tmp_path / f"cut{cut}"
        files.power_cut(image)
        store = MessageStore.open(small_settings(image))
        there = contents(store)
        assert writer.durable().items() <= there.items()
        assert all(writer.written[place][0] == body for place, body in there.items())
        if sync:
            # The messages that consumers could see survive: no offset is given out twice.
            for topic, queue_id in writer.store.queues():
                seen = writer.store.max_offset(topic, queue_id)
                assert store.max_offset(topic, queue_id) >= seen
        assert store.close()
        check_rebuild(image, tmp_path / f"recut{cut}")
    assert writer.store.close()
    store = MessageStore.open(small_settings(root))
    assert store.recovery.clean_stop
    assert contents(store) == {place: body for place, (body, _) in writer.written.items()}
    store.close()


@pytest.mark.parametrize("number", NUMBERS)
def test_damaged_bytes_cost_the_records_they_hit_only(
    tmp_path: Path, number: int, seed: int
) -> None:
    rng = random.Random(f"{seed} {number}")
    root = tmp_path / "store"
    root.mkdir()
    writer = Writer(root, rng, FaultyFiles(root), sync=False)
    for _ in range(80):
        writer.put()
    writer.store.dispatch()
    records = [
        one
        for topic, queue_id in writer.store.queues()
        for one in read_all(writer.store, topic, queue_id)
    ]
    last = max(records, key=lambda one: one.log_offset)
    image = kill_image(root, tmp_path / "image")
    end = writer.store.written
    writer.store.close()
    hit: set[int] = set()
    for _ in range(rng.randrange(1, 5)):
        # Below the last record that a queue names; the bytes behind it may be a torn tail.
        position = rng.randrange(last.log_offset)
        for number in range(position, min(position + rng.choice((1, 4, 600)), last.log_offset)):
            start = number // SEGMENT * SEGMENT
            with (image / "commitlog" / f"{start:020d}").open("r+b") as file:
                file.seek(number - start)
                old = file.read(1)[0]
                file.seek(number - start)
                file.write(bytes([old ^ rng.randrange(1, 256)]))
            hit.add(number)
    lost = {
        (one.topic, one.queue_id, one.queue_offset)
        for one in records
        if any(number in hit for number in range(one.log_offset, one.log_offset + one.size))
    }
    for _ in range(2):
        store = MessageStore.open(small_settings(image))
        assert store.written == end
        found = {
            (topic, queue_id, one.queue_offset): one.body
            for topic, queue_id in store.queues()
            for one in read_all(store, topic, queue_id)
        }
        for place, (body, _) in writer.written.items():
            if place not in lost:
                assert found[place] == body, place
        # A flipped bit that no check covers (a flag, a time) leaves its record readable; one in
        # the topic or queue id may even leave it in a place of its own.
        for place in set(found) - set(writer.written):
            assert found[place] in [writer.written[one][0] for one in lost]
        for topic, queue_id in writer.store.queues():
            assert store.max_offset(topic, queue_id) == writer.store.max_offset(topic, queue_id)
        assert store.close()
