"""The two kinds of message id (protocol/WIRE.md 6.6).

offsetMsgId: the place of a message, upper-case hex of the broker's IP, its port (i32) and the
commit log offset (i64); clients take the address out of it and connect there. Unique id (UNIQ_KEY):
made by the producer, upper-case hex of IP, process id (i16), a process specific number (i32),
milliseconds since the start of the month (i32) and a counter (i16). Brokers treat it as opaque
text.
"""

import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.message.record_layout import unpack_host

_HEX = re.compile(r"[0-9A-Fa-f]+", re.ASCII)
_V4_CHARS, _V6_CHARS = 32, 56
_UNIQUE_COMMON = struct.Struct(">HII")
_OFFSET_CHARS = 16


@lru_cache(maxsize=64)
def _host_hex(store_host: bytes) -> str:
    return store_host.hex().upper()


def offset_msg_id(store_host: bytes, log_offset: int) -> str:
    """The id of the message at `log_offset`; `store_host` in record form (8 or 20 bytes)."""
    return f"{_host_hex(store_host)}{log_offset:016X}"


def parse_offset_msg_id(text: str) -> tuple[str, int, int]:
    """(ip, port, log offset) of an offsetMsgId; BadRequest (code 1) for any other text."""
    if len(text) not in (_V4_CHARS, _V6_CHARS) or _HEX.fullmatch(text) is None:
        raise BadRequest.system_error("the message id must be 32 or 56 hexadecimal characters")
    ip, port = unpack_host(bytes.fromhex(text[:-_OFFSET_CHARS]))
    log_offset = int(text[-_OFFSET_CHARS:], 16)
    if port > 0xFFFF or log_offset > 0x7FFFFFFFFFFFFFFF:
        raise BadRequest.system_error("the message id holds no possible port or log offset")
    return ip, port, log_offset


class UniqueIdMaker:
    """Makes unique message ids for one process; one owner thread.

    `ip` is 4 or 16 bytes, `clock_ms` the wall clock in milliseconds, `salt` a number that tells
    processes with the same address and process id apart (containers), at most 32 bits.
    """

    def __init__(self, ip: bytes, pid: int, salt: int, clock_ms: Callable[[], int]) -> None:
        assert len(ip) in (4, 16)
        self._ip = ip.hex().upper()
        self._pid = pid & 0xFFFF
        self._salt = salt & 0xFFFFFFFF
        self._clock_ms = clock_ms
        self._counter = 0
        self._month_start_ms = 0
        self._next_month_ms = 0

    def next_id(self) -> str:
        """A new id: unique for 65,536 calls within one millisecond."""
        common, counter = self.block(1)
        return f"{common}{counter:04X}"

    def block(self, count: int) -> tuple[str, int]:
        """The beginning of the next `count` ids, and the number of the first, its last four digits:
        it counts on modulo 65,536."""
        assert 0 < count <= 0x10000
        now = self._clock_ms()
        if not self._month_start_ms <= now < self._next_month_ms:
            self._turn_month(now)
        counter = self._counter
        self._counter = (counter + count) & 0xFFFF
        since_month = (now - self._month_start_ms) & 0xFFFFFFFF
        common = _UNIQUE_COMMON.pack(self._pid, self._salt, since_month)
        return self._ip + common.hex().upper(), counter

    def _turn_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        start = datetime(now.year, now.month, 1, tzinfo=UTC)
        following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)
