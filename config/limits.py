"""Limits: what input from outside can make the broker hold, and how the limits hang together.

A limit alone says little: a message has to fit a frame, a frame the memory for unfinished frames, a
record a segment, connections the files this process may open. `Limits.of` asserts those relations
once, at the start, so that no code on the request path has to wonder (a record that fits no segment
was acknowledged and lost in the reference, docs/reliability.md B19).

Numbers that are part of the format or the protocol, and so not settings, are constants here.
"""

import resource
from dataclasses import dataclass
from typing import Final, Self

from aerobee.config.errors import ConfigError
from aerobee.config.model import BY_NAME, Settings
from aerobee.config.settings.store import RECORD_OVERHEAD_BYTES

PROPERTIES_BYTES_MAX: Final = 32_767  # an i16 length in the record (store/FORMAT.md 2.5)

# Properties in a JSON header: each byte may become a six-byte escape.
_JSON_ESCAPE_FACTOR: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Checked limits of the client ports, named as the connection layer names them.

    Limits of a single component (topics, held pulls, message size) are read from the settings.
    """

    frame_bytes: int
    header_bytes: int
    frame_grace_s: float
    frame_bytes_per_s: int
    idle_s: float
    connections: int
    connections_per_address: int
    inbound_total_bytes: int
    outbound_high_water_bytes: int
    outbound_connection_bytes: int
    outbound_total_bytes: int
    pending_calls: int
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, open_files: int | None = None) -> Self:
        """Make and check the limits. `open_files` is what the process may open (default: asked of
        the system). Raises ConfigError naming the setting to change; `warnings` says what was
        lowered to what the system allows."""
        _assert_relations(settings)
        files = open_files_allowed() if open_files is None else open_files
        connections, warnings = _connections(settings, files)
        return cls(
            frame_bytes=settings.max_frame_bytes,
            header_bytes=settings.max_header_bytes,
            frame_grace_s=float(settings.frame_base_seconds),
            frame_bytes_per_s=settings.frame_bytes_per_second,
            idle_s=float(settings.idle_seconds),
            connections=connections,
            connections_per_address=min(settings.connections_per_address, connections),
            inbound_total_bytes=settings.inbound_bytes,
            outbound_high_water_bytes=settings.outbound_high_water_bytes,
            outbound_connection_bytes=settings.outbound_bytes_per_connection,
            outbound_total_bytes=settings.outbound_bytes,
            pending_calls=settings.calls_per_connection,
            warnings=warnings,
        )


def open_files_allowed() -> int:
    """The files this process may have open now (the soft limit)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if soft == resource.RLIM_INFINITY else soft


def raise_open_files(wanted: int) -> int:
    """Raise the soft limit of open files towards `wanted`, as far as the hard limit lets us.

    Returns what is allowed afterwards. Shells start processes with 1,024, far below what systemd
    gives a service, and a broker should not refuse clients for that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
    return open_files_allowed()


def _assert_relations(settings: Settings) -> None:
    frame = settings.max_frame_bytes
    header = settings.max_header_bytes
    record = settings.max_message_bytes + RECORD_OVERHEAD_BYTES
    _hold(
        settings,
        "max_message_bytes",
        record <= settings.commit_log_segment_bytes,
        "the largest record would not fit a commit log segment "
        f"(store.commit_log_segment_bytes = {settings.commit_log_segment_bytes})",
    )
    _hold(
        settings,
        "max_message_bytes",
        settings.max_message_bytes + header + 8 <= frame,
        f"message and header would not fit a frame (limits.max_frame_bytes = {frame}, "
        f"limits.max_header_bytes = {header})",
    )
    _hold(
        settings,
        "max_header_bytes",
        header >= PROPERTIES_BYTES_MAX * _JSON_ESCAPE_FACTOR,
        f"must hold {PROPERTIES_BYTES_MAX} bytes of properties, each escaped to six",
    )
    for name in ("transfer_bytes_memory", "transfer_bytes_bulk"):
        _hold(
            settings,
            name,
            getattr(settings, name) + record + header <= frame,
            f"a pull answer would not fit a frame (limits.max_frame_bytes = {frame})",
        )
    for smaller, larger in (
        ("max_frame_bytes", "inbound_bytes"),
        ("max_frame_bytes", "outbound_bytes_per_connection"),
        ("outbound_high_water_bytes", "outbound_bytes_per_connection"),
        ("outbound_bytes_per_connection", "outbound_bytes"),
        ("max_queues_per_topic", "max_queues"),
        ("default_topic_queues", "max_queues_per_topic"),
    ):
        high = getattr(settings, larger)
        reason = f"must not be above {BY_NAME[larger].full_key} = {high}"
        _hold(settings, smaller, getattr(settings, smaller) <= high, reason)


def _hold(settings: Settings, name: str, holds: bool, reason: str) -> None:
    if not holds:
        value = str(getattr(settings, name))
        raise ConfigError(BY_NAME[name].full_key, value, reason)


def _connections(settings: Settings, open_files: int) -> tuple[int, tuple[str, ...]]:
    """How many connections fit the process's open files, and a warning when that is fewer."""
    room = open_files - settings.reserved_files
    if room < 1:
        reason = f"leaves no connections of the {open_files} files this process may open"
        raise ConfigError(BY_NAME["reserved_files"].full_key, str(settings.reserved_files), reason)
    if settings.connections <= room:
        return settings.connections, ()
    warning = (
        f"connections are limited to {room}, not {settings.connections}: this process may open "
        f"{open_files} files (raise ulimit -n or LimitNOFILE)"
    )
    return room, (warning,)
