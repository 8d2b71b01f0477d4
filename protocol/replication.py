"""The bytes between a master and its slaves on the HA port (protocol/WIRE.md 10).

No frames of the remoting protocol: a slave sends log offsets, a master sends blocks of its commit
log. There is no greeting, no name and no length of the whole.

| direction       | bytes                                                                    |
|-----------------|--------------------------------------------------------------------------|
| slave to master | i64 log offset, repeated: up to there the slave has the log              |
| master to slave | i64 log offset, i32 size, then `size` bytes of the log; size 0: a sign   |
|                 | of life, whose offset is that of the next block                          |
"""

import struct
from typing import Final, NamedTuple

from aerobee.protocol.errors import ProtocolError

_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
REPORT_BYTES: Final = _REPORT.size
HEAD_BYTES: Final = _HEAD.size

#: A slave in Java has a buffer of 4 MiB for a whole block; a larger one would never be complete.
MOST_BLOCK_BYTES: Final = (4 << 20) - HEAD_BYTES
#: The largest block that a slave of ours takes. Some masters were built with larger ones.
MOST_TAKEN_BYTES: Final = 16 << 20


# 64 PiB. The first bytes of other protocols are larger numbers, so they are told from slaves.
_MOST_LOG_OFFSET: Final = 1 << 56
# The first byte of TLS.
_HANDSHAKE: Final = 0x16
_TLS: Final = "that is TLS, which tls.server.mode does not allow here"


class BadReplication(ProtocolError):
    """The peer of a replication connection sent what no sound one sends. The connection ends."""


class BlockHead(NamedTuple):
    """The head of a block: the log offset of its first byte, and its size in bytes."""

    log_offset: int
    size: int


def encode_report(log_offset: int) -> bytes:
    """The bytes of a slave's report."""
    return _REPORT.pack(log_offset)


def encode_head(log_offset: int, size: int) -> bytes:
    """The bytes before a block of `size` bytes; with size 0 a sign of life."""
    return _HEAD.pack(log_offset, size)


def decode_head(data: bytes | bytearray | memoryview) -> BlockHead:
    """The head in `data`, HEAD_BYTES long. Raises BadReplication for a size or offset that none
    has."""
    head = BlockHead(*_HEAD.unpack(data))
    if head.log_offset < 0 or not 0 <= head.size <= MOST_TAKEN_BYTES:
        raise BadReplication(
            f"a block of {head.size} bytes at log offset {head.log_offset}: is that the HA port of "
            "a RocketMQ master?"
        )
    return head


class ReportDecoder:
    """Cuts reports from a slave's stream. Only whole ones count; of several the last one does."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The newest whole report, None while none is whole. Raises BadReplication for a number
        that no slave reports."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        if not whole:
            return None
        # Another protocol shows in its first bytes, and the last ones may be like a report.
        for place in (0, whole - REPORT_BYTES):
            report: int = _REPORT.unpack_from(data, place)[0]
            if not 0 <= report < _MOST_LOG_OFFSET:
                why = _TLS if data[place] == _HANDSHAKE else "that is no slave"
                raise BadReplication(f"a report of {report}, which no log reaches: {why}")
        return report
