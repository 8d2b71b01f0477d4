"""Plain counters of one set of connections; the scrape turns them into metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class CloseReason(StrEnum):
    """Why a connection ended. Owners may pass further words; keep them few, they are labels."""

    PEER = "closed by peer"
    RESET = "connection reset"
    IDLE = "idle"
    SLOW_FRAME = "frame too slow"
    BAD_FRAME = "bad frame"
    HTTP = "looks like HTTP"
    TLS = "looks like TLS"
    NOT_READING = "peer does not read"
    OUTBOUND_MEMORY = "outbound memory"
    INBOUND_MEMORY = "inbound memory"
    HANDLER_FAILED = "handler failed"
    SHUTDOWN = "shutdown"
    LOCAL = "closed here"


class TlsFailure(StrEnum):
    """Why no connection came of a socket that was accepted, where TLS is taken or asked for."""

    RUBBISH = "rubbish"
    VERSION = "old version"
    # The client's: missing, or not trusted.
    CERTIFICATE = "certificate"
    # The client does not trust ours.
    REFUSED = "refused by client"
    CIPHER = "no common cipher"
    TIMEOUT = "timeout"
    GONE = "gone"
    # Not one byte came.
    SILENT = "silent"
    PLAIN = "plain on enforcing"
    DISABLED = "tls on disabled"


@dataclass(slots=True, eq=False)
class TlsStats:
    """Handshakes that ended well, and those that did not."""

    # Gauge: sockets that have not shown what they are, or are about their handshake.
    arriving: int = 0
    handshakes: int = 0
    failed: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class ServerStats:
    """Counters since the set was made; all but `open` and the three gauges only grow."""

    accepted: int = 0
    open: int = 0
    # Refused because of the limit for all, and for one address.
    refused_total: int = 0
    refused_address: int = 0
    # Times that accepting paused because the process (or machine) had no descriptor left.
    accept_errors: int = 0
    bad_frames: int = 0
    tls: TlsStats = field(default_factory=TlsStats)
    closed: Counter[str] = field(default_factory=Counter)
    reads: int = 0
    commands_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    # Times that reading from a peer stopped until it took its output.
    paused: int = 0
    # Gauges: bytes of unfinished frames now; unsent output when last counted.
    inbound_bytes: int = 0
    outbound_bytes: int = 0
