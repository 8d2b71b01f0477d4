"""kill -9 of a writing process, again and again on the same store: nothing acknowledged is lost."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.protocol.message.record import decode_record
from aerobee.store.message_store import MessageStore
from tests import campaign
from tests.crash.kills.store_writer import body_of
from tests.unit.store.support import read_all, small_settings

WRITER = Path(__file__).parent / "store_writer.py"


def write_and_kill(root: Path, flush: str, first: int, seed: int, lines: int) -> list[list[int]]:
    """Let a writer run until it has acknowledged `lines` messages or more, then kill it."""
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(root), flush, str(first), str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    acked: list[bytes] = []
    for _ in range(lines):
        line = process.stdout.readline()
        assert line, process.stderr.read().decode()
        acked.append(line)
    process.kill()
    acked += process.stdout.read().splitlines(keepends=True)
    process.stdout.close()
    process.stderr.close()
    assert process.wait(10) == -9
    # A line that was cut off was not received by anybody.
    return [[int(word) for word in line.split()] for line in acked if line.endswith(b"\n")]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_killed_writer_loses_nothing_acknowledged(tmp_path: Path, flush: str, seed: int) -> None:
    rng = random.Random(f"{seed} {flush}")
    rounds = campaign.size("kill store")
    acked: dict[tuple[int, int], int] = {}
    first = 0
    for round_number in range(rounds):
        for queue_id, queue_offset, number in write_and_kill(
            tmp_path, flush, first, seed, rng.randrange(1, 150)
        ):
            assert (queue_id, queue_offset) not in acked, "a queue offset was given out twice"
            acked[queue_id, queue_offset] = number
        first = max(acked.values()) + 1000
        store = MessageStore.open(small_settings(tmp_path, flush_disk_type=flush))
        assert not store.recovery.clean_stop
        assert store.recovery.gaps == []
        found = [one for queue_id in range(3) for one in read_all(store, queue_id=queue_id)]
        there = {(one.queue_id, one.queue_offset): one for one in found}
        for place, number in acked.items():
            assert there[place].body == body_of(number, seed), (round_number, place)
        for queue_id in range(3):
            offsets = [offset for queue, offset in there if queue == queue_id]
            assert sorted(offsets) == list(range(len(offsets)))
        for number in rng.sample(sorted(acked.values()), 20 if len(acked) > 20 else 1):
            records = store.search.query("Orders", f"U{number}", 10, 0, 2**62).records
            assert [decode_record(record).body for record in records] == [body_of(number, seed)]
        assert store.close()
        if round_number % 2:
            (tmp_path / "abort").touch()  # the next writer recovers what we left, too
    campaign.note("kill store", rounds, messages=len(acked))
    assert len(acked) > rounds
