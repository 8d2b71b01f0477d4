"""A process that appends into a transient pool until it is killed, and says how far it is.

Run by test_kill_pool.py: `python pool_writer.py DIR BUFFERS INTERVAL_MS FIRST SEED`. Prints a line
for each acknowledged message, `A queue-id queue-offset number end`, and `C offset` for the mark of
what is committed, as read before. With INTERVAL_MS 0 it says `W` and waits for a line after each
turn, and commits when that line is `commit` and never else.
"""

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from aerobee.store.message_store import MessageStore
from tests.crash.kills.store_writer import body_of
from tests.unit.store.support import message, small_settings

NEVER_MS = 3_600_000


def main(directory: str, buffers: int, interval_ms: int, first: int, seed: int) -> None:
    store = MessageStore.open(
        small_settings(
            Path(directory),
            transient_pool_enabled=True,
            transient_pool_buffers=buffers,
            commit_interval_ms=interval_ms or NEVER_MS,
            commit_thorough_interval_ms=interval_ms or NEVER_MS,
            consume_queue_flush_interval_ms=5,
        )
    )
    rng = random.Random(seed + first)
    number = first
    while True:
        committed = store.committed
        lines = [f"C {committed}\n"]
        for _ in range(rng.randrange(1, 6)):
            queue_id = number % 3
            result = store.log.put(
                message(body_of(number, seed), queue_id=queue_id, unique=f"U{number}", tags="t")
            )
            lines.append(f"A {queue_id} {result.queue_offset} {number} {result.end}\n")
            number += 1
        os.write(1, "".join(lines).encode())
        store.dispatch()
        if not interval_ms:
            os.write(1, b"W\n")
            if sys.stdin.readline() == "commit\n":
                assert store._commits is not None
                assert store._commits.commit(0)


if __name__ == "__main__":
    main(sys.argv[1], *(int(text) for text in sys.argv[2:]))
