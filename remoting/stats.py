"""Plain counters of one set of connections; the scrape turns them into metrics."""

from __future__ import annotations

from collections import Counter
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


class ServerStats:
    """Counters since the set was made; all but `open` and the three gauges only grow."""

    __slots__ = (
        "accept_errors",
        "accepted",
        "bad_frames",
        "bytes_in",
        "bytes_out",
        "closed",
        "commands_in",
        "inbound_bytes",
        "open",
        "outbound_bytes",
        "paused",
        "reads",
        "refused_address",
        "refused_total",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.open = 0
        # Refused because of the limit for all, and for one address.
        self.refused_total = 0
        self.refused_address = 0
        # Times that accepting paused because the process (or machine) had no descriptor left.
        self.accept_errors = 0
        self.bad_frames = 0
        self.closed: Counter[str] = Counter()
        self.reads = 0
        self.commands_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        # Times that reading from a peer stopped until it took its output.
        self.paused = 0
        # Gauges: bytes of unfinished frames now; unsent output when last counted.
        self.inbound_bytes = 0
        self.outbound_bytes = 0
