"""A process that writes to a store until it is killed, and says what was acknowledged.

Run by test_kill_store.py: `python store_writer.py DIR FLUSH FIRST SEED`. Prints one line for each
acknowledged message: queue id, queue offset, number.
"""

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from aerobee.store.message_store import MessageStore
from tests.unit.store.support import message, small_settings


def body_of(number: int, seed: int) -> bytes:
    """The body of a numbered message; everybody can make it again."""
    return b"%08d" % number + random.Random(number * 31 + seed).randbytes(number * 37 % 400)


def main(directory: str, flush: str, first: int, seed: int) -> None:
    settings = small_settings(
        Path(directory), flush_disk_type=flush, consume_queue_flush_interval_ms=5
    )
    store = MessageStore.open(settings)
    number = first
    while True:
        lines: list[str] = []
        end = 0
        for _ in range(1 + number % 5):
            queue_id = number % 3
            result = store.log.put(
                message(body_of(number, seed), queue_id=queue_id, unique=f"U{number}", tags="t")
            )
            lines.append(f"{queue_id} {result.queue_offset} {number}\n")
            end = result.end
            number += 1
        if flush == "SYNC_FLUSH":
            store.request_flush()
            assert store.wait_durable(end, 10)
        os.write(1, "".join(lines).encode())
        store.dispatch()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
