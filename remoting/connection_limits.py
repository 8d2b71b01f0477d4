"""Limits of one set of connections; `broker/lifecycle/daemon.py` fills them from the settings.

The defaults are the table of docs/reliability.md 8.2: judged before memory is
spent, each with a counter in `connection_stats.py` and one answer when hit.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """Bounds of a server's (or a client's) connections. Raises ValueError when they contradict."""

    # Frame limits, the wire's own (protocol/WIRE.md 1.1); header text is escaped up to six-fold.
    frame_bytes: int = 16 * MIB
    header_bytes: int = 256 * KIB
    # Connections; what is above is refused, i.e. closed before anything is read.
    connections: int = 10_000
    connections_per_address: int = 5_000
    # Neither read nor written for this long: closed (protocol/WIRE.md 1.9).
    idle_s: float = 120.0
    # One frame may take the grace plus what has arrived of it at this rate.
    frame_grace_s: float = 30.0
    frame_bytes_per_s: int = 64 * KIB
    # Unfinished frames of all connections together.
    inbound_total_bytes: int = 128 * MIB
    # Unsent output: above the high water reading from that peer stops; above the second the
    # connection is closed; above the total the connections holding most are closed.
    outbound_high_water_bytes: int = 1 * MIB
    outbound_connection_bytes: int = 64 * MIB
    outbound_total_bytes: int = 128 * MIB
    # Requests waiting for an answer of the peer, per connection.
    pending_calls: int = 16_384
    # One buffer serves every connection of the set. 256 KiB lets a busy socket be emptied in one
    # read; larger ones fall out of the processor's cache. With TLS on the compiled
    # form's sockets no less than a record, 16 KiB.
    read_buffer_bytes: int = 256 * KIB
    # Time is read once a sweep: every limit in seconds is met to within this.
    sweep_interval_s: float = 1.0
    # Accepting waits this long when the process has no descriptor left.
    accept_pause_s: float = 1.0
    # A closing connection gets this long to take what was already written to it.
    close_grace_s: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"remoting limit {name} must be above 0")
        for smaller, larger in (
            ("header_bytes", "frame_bytes"),
            ("frame_bytes", "inbound_total_bytes"),
            ("outbound_high_water_bytes", "outbound_total_bytes"),
        ):
            if getattr(self, smaller) > getattr(self, larger):
                raise ValueError(f"remoting limit {smaller} must not be above {larger}")
