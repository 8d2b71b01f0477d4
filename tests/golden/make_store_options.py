"""Makes the golden stores of the options, in `tests/golden/store_<option>/`.

As make_store.py: packed from the format's description, not by the store's code. Run it
as `python -m tests.golden.make_store_options`; `git diff` must show nothing.
"""

import shutil
import zlib
from pathlib import Path

from tests.golden.make_store import Item, record, write_store

SEAL_BYTES = 20


def sealed_record(item: Item, queue_offset: int, log_offset: int, store_ms: int) -> bytes:
    """A record whose last property is the CRC of all before it (store spec 2.10)."""
    text = item.properties
    if text and not text.endswith("\x02"):
        text += "\x02"
    # What stands in the seal's place does not count, but its length does.
    roomy = item._replace(properties=text + " " * SEAL_BYTES)
    head = record(roomy, queue_offset, log_offset, store_ms)[:-SEAL_BYTES]
    value = zlib.crc32(head) & 0x7FFFFFFF
    digits = b""
    for _ in range(10):
        digits += b"%d" % (value % 10)
        value //= 10
    return head + b"__CRC32#\x01" + digits + b"\x02"


def target(option: str) -> Path:
    return Path(__file__).parent / f"store_{option}"


if __name__ == "__main__":
    shutil.rmtree(target("sealed"), ignore_errors=True)
    write_store(target("sealed"), ["0", "1"], sealed_record)
