"""kill -9 of a process that appends into a transient pool: a suffix may go, and no more than that.

Messages that were committed to the files stay, the others go although they were acknowledged; the
pool's option means that (docs/reliability.md 1). Both halves are shown: a store that lost nothing
here would mean that the test does not see what it is about.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from tests import campaign
from tests.crash.kills.store_writer import body_of
from tests.unit.store.support import read_all, small_settings

WRITER = Path(__file__).parent / "pool_writer.py"


class Writer:
    """The process, what it has acknowledged (queue id, queue offset, number, end), its mark."""

    def __init__(self, root: Path, buffers: int, interval_ms: int, first: int, seed: int) -> None:
        words = [str(root), *map(str, (buffers, interval_ms, first, seed))]
        self.process = subprocess.Popen(
            [sys.executable, str(WRITER), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.acked: list[tuple[int, int, int, int]] = []
        self.committed = 0
        self.waits = 0

    def read(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read().decode()
        self._take(line)

    def tell(self, line: str) -> None:
        """Let a writer without an interval go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.kill()
        for line in process.stdout.readlines():
            if line.endswith(b"\n"):  # nobody received a line that was cut off
                self._take(line)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        assert process.wait(10) == -9

    def _take(self, line: bytes) -> None:
        kind, *numbers = line.split()
        if kind == b"W":
            self.waits += 1
        elif kind == b"C":
            self.committed = int(numbers[0])
        else:
            queue_id, queue_offset, number, end = map(int, numbers)
            self.acked.append((queue_id, queue_offset, number, end))


def there_after_restart(root: Path, seed: int, known: set[int]) -> set[int]:
    """Numbers of all messages that the next start finds; whole, and each queue without a gap."""
    store = MessageStore.open(small_settings(root))
    assert not store.recovery.clean_stop
    assert store.recovery.gaps == []
    numbers: set[int] = set()
    for queue_id in range(3):
        found = read_all(store, queue_id=queue_id)
        assert [one.queue_offset for one in found] == list(range(len(found)))
        for one in found:
            number = int(one.body[:8])
            assert one.body == body_of(number, seed)
            assert number % 3 == queue_id
            numbers.add(number)
    assert known <= numbers, "a restart lost what the one before had"
    assert store.close()
    return numbers


def check_suffix(writer: Writer, numbers: set[int]) -> int:
    """Check that the store has the beginning of this round, up to the mark at least; return the
    number lost."""
    kept = [number in numbers for _, _, number, _ in writer.acked]
    lost = kept.count(False)
    assert not any(kept[len(kept) - lost :])
    for (_, _, number, end), is_kept in zip(writer.acked, kept, strict=True):
        assert is_kept or end > writer.committed, f"{number} was committed"
    return lost


@pytest.mark.parametrize("buffers", [1, 3, 8])
def test_killed_writer_loses_a_suffix_that_was_not_committed(
    tmp_path: Path, buffers: int, seed: int
) -> None:
    rng = random.Random(f"{seed} {buffers}")
    first, known = 0, set[int]()
    rounds = campaign.size("kill pool")
    for _ in range(rounds):
        writer = Writer(tmp_path, buffers, rng.choice((1, 5, 50)), first, seed)
        for _ in range(rng.randrange(1, 300)):
            writer.read()
        writer.kill()
        known = there_after_restart(tmp_path, seed, known)
        check_suffix(writer, known)
        first = max(number for _, _, number, _ in writer.acked) + 1000
    campaign.note("kill pool", rounds, messages=len(known))


def test_acknowledged_messages_that_were_not_committed_are_lost(tmp_path: Path) -> None:
    """The other half: the exact bound, as long as each segment has a buffer."""
    writer = Writer(tmp_path, 20, 0, 0, 1)
    for turn in range(30):
        while writer.waits <= turn:
            writer.read()
        writer.tell("commit\n" if turn < 10 else "go on\n")
    while writer.waits <= 30:
        writer.read()
    writer.kill()
    numbers = there_after_restart(tmp_path, 1, set())
    lost = check_suffix(writer, numbers)
    assert numbers == {number for _, _, number, end in writer.acked if end <= writer.committed}
    assert lost >= 20
