"""Runs kill_child.py so that it dies at a given place, and makes the wreck that recoveries die on.

Two kinds of places. A system call: strace delivers SIGKILL when a thread makes its n-th call of
that name, so the call is not made. A line of a function of the store: the child's own tracer, for
what is no call: between the copy into the map and the mark, between the sync and the mark, between
the mark and the acknowledgement, and every other line of those functions.

One kill of the writer again, with what is wrong afterwards (the directory stays):
    python -m tests.crash.kills.kill_runs DIR SYNC_FLUSH pwrite64 37
    python -m tests.crash.kills.kill_runs DIR SYNC_FLUSH store.log.commit_log:CommitLog._append:12:3
"""

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.crash.kills.kill_check import Said, check_killed, open_store
from tests.crash.kills.kill_child import QUEUES, code_of, lines_of
from tests.unit.store.support import SEGMENT, flip, log_segment, queue_file, read_all

CHILD = Path(__file__).parent / "kill_child.py"
TIMEOUT_S = 60
_WRECK_POINT = "store.dispatch.reput:Reput._done:0:19"
#: Everything that changes files. Creating one is seen as what follows it: set its size, reserve.
CALLS = (
    "pwrite64", "write", "writev", "fdatasync", "fsync", "ftruncate", "fallocate", "rename",
    "unlink", "link", "mkdir",
)  # fmt: skip
#: Functions that run between two calls, or make no call at all.
FUNCTIONS = (
    "store.log.commit_log:CommitLog._append",
    "store.log.commit_log:CommitLog._roll",
    "store.flush.services:CommitLogSync.sync",
    "store.dispatch.reput:Reput._dispatch_fed",
    "store.queues.consume_queue:ConsumeQueue._write_split",
    "store.index.index_file:IndexFile.put",
    "store.index.index_file:IndexFile.write_header",
    "store.index.index_service:IndexService._roll",
    "store.segments.mapped_file:MappedFile.make",
    "store.segments.mapped_file:MappedFile.append",
    "store.disk.checkpoint:Checkpoint.flush",
    "store.disk.offsets_file:OffsetsFile.save",
    "store.disk.lock:StoreLock.mark_clean",
    "broker.tables.files.state_file:JsonStateFile.save",
)
RECOVERY_FUNCTIONS = (
    "store.recovery.recovery:Recovery.run",
    "store.recovery.recovery:Recovery._set_back_offsets",
    "store.recovery.recovery:Recovery._cut_log",
    "store.recovery.recovery:Recovery._cut_index",
    "store.recovery.recovery:Recovery._cut_queue",
    "store.recovery.recovery:Recovery._finish",
    "store.log.scan.sequence:Sequences._accept",
    "store.index.index_file:IndexFile.put",
    "store.segments.mapped_file:MappedFile.zero_from",
    "store.disk.offsets_file:OffsetsFile.save",
)


def run_child(*arguments: str, strace: tuple[str, ...] = ()) -> Said:
    """The child's output until it was killed, or was done. Raises AssertionError for a crash."""
    tracer = ("strace", "-f", "-qq", "-o", "/dev/null", *strace) if strace else ()
    finished = subprocess.run(
        [*tracer, sys.executable, str(CHILD), *arguments],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    said = Said.of(finished.stdout)
    # strace ends as its child did; a shell would say 137.
    killed = finished.returncode in (-9, 137)
    assert killed != said.done, f"code {finished.returncode}\n{finished.stderr.decode()[-2000:]}"
    return said


def at_call(call: str, nth: int) -> tuple[str, ...]:
    """strace's options for a SIGKILL at a thread's n-th such call."""
    return ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}")


def calls_made(call: str, trace: Path, *arguments: str) -> int:
    """How many of the calls the busiest thread of a child makes that nobody kills."""
    said = run_child(*arguments, strace=("-e", f"trace={call}", "-o", str(trace)))
    assert said.done
    of_threads = Counter(
        line.split()[0] for line in trace.read_text().splitlines() if f" {call}(" in line
    )
    return max(of_threads.values())


def lines(functions: tuple[str, ...], rng: random.Random) -> Iterator[str]:
    """A point for every line of these functions, in turn at its first visit and a later one."""
    for name in functions:
        module, function = name.split(":")
        for index in range(len(lines_of(code_of(module, function)))):
            yield f"{name}:{index}:{rng.choice((2, 3, 7, 20)) if index % 2 else 1}"


def make_wreck(root: Path) -> None:
    """A killed writer's directory with damage, a torn tail, short queues, and no index."""
    said = run_child(
        "write", str(root), "SYNC_FLUSH", "--at", "store.dispatch.reput:Reput._done:0:19"
    )
    assert len(said.acks) > 40
    probe = root.with_name("probe")
    shutil.copytree(root, probe)
    store = open_store(probe)
    records = [one for queue_id in range(QUEUES) for one in read_all(store, queue_id=queue_id)]
    end = store.written
    store.close()
    shutil.rmtree(probe)
    hit = records[20]
    start = hit.log_offset // SEGMENT * SEGMENT
    flip(log_segment(root, start), hit.log_offset - start + 90)
    with log_segment(root, end // SEGMENT * SEGMENT).open("r+b") as file:
        file.seek(end % SEGMENT)
        file.write(b"torn tail" * 20)
    for queue_id, begin in ((0, 200), (1, 200), (2, 0)):
        path = queue_file(root, queue_id=queue_id, start=begin)
        path.write_bytes(path.read_bytes()[:60] + bytes(140))
    shutil.rmtree(root / "index")


def replay(directory: str, flush: str, place: str, nth: str = "") -> None:
    """One kill, and what is wrong after it."""
    root = Path(directory) / "store"
    options = () if nth else ("--at", place)
    strace = at_call(place, int(nth)) if nth else ()
    said = run_child("write", str(root), flush, *options, strace=strace)
    print(f"{len(said.acks)} acknowledged, {'not killed' if said.done else 'killed'}")
    for text in check_killed(root, said):
        print(text)


if __name__ == "__main__":
    replay(*sys.argv[1:])
