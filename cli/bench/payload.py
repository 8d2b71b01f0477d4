"""Bodies and keys of the messages: the same ones for the same seed, in every process."""

import base64
import random
from pathlib import Path
from typing import Final

import msgspec

_KEYS: Final = 10_000
_KEY_BYTES: Final = 7


class Payload(msgspec.Struct, frozen=True):
    """The bodies of messages: that of a file, or `pool` different ones of `size` bytes.

    `random_ratio` of each is random bytes, the rest is zeros: it decides how well they compress.
    """

    size: int
    file: str = ""
    pool: int = 1
    random_ratio: float = 1.0

    def bodies(self, seed: int) -> list[bytes]:
        """All bodies, at least one. Raises OSError when the file cannot be read."""
        if self.file:
            return [Path(self.file).read_bytes()]
        source = random.Random(seed)
        count = int(self.size * self.random_ratio)
        rest = bytes(self.size - count)
        return [source.randbytes(count) + rest for _ in range(self.pool)]


class Keys:
    """The keys of messages, one after the other: 10,000 different ones, all of ten characters."""

    def __init__(self, *, shuffled: bool, seed: int) -> None:
        source = random.Random(seed)
        self._keys = [
            base64.urlsafe_b64encode(source.randbytes(_KEY_BYTES)).rstrip(b"=")
            for _ in range(_KEYS)
        ]
        self._source = source if shuffled else None
        self._next = 0

    def next(self) -> bytes:
        """The key of the next message."""
        if self._source is not None:
            return self._keys[self._source.randrange(_KEYS)]
        self._next = (self._next + 1) % _KEYS
        return self._keys[self._next]
