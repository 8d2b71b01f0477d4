"""Checks that the limits of what input from outside can make the broker hold fit each other.

A limit alone says little. A message has to fit a frame, and a frame the memory for unfinished
frames; a record has to fit a segment; the connections have to fit the files that this process may
open. These relations are checked once, at the start, so that no code on the request path has to ask
(the reference acknowledged a record that fits no segment, and lost it; docs/reliability.md B19).

Numbers that are part of the format or the protocol, and so not settings, are constants here.
"""

import resource
from typing import Final, NamedTuple

from aerobee.config.errors import ConfigError
from aerobee.config.model import BY_NAME, Settings
from aerobee.config.settings.store import RECORD_OVERHEAD_BYTES

PROPERTIES_BYTES_MAX: Final = 32_767  # an i16 length in the record (store/FORMAT.md 2.5)

# Properties in a JSON header: each byte may become a six-byte escape.
_JSON_ESCAPE_FACTOR: Final = 6


class ConnectionLimit(NamedTuple):
    """The most client connections, and the warnings about that number."""

    connections: int
    warnings: tuple[str, ...] = ()


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


def check_limits(settings: Settings) -> None:
    """Raises ConfigError if two limits contradict each other; it names the setting to change."""
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
        ("client_calls_per_connection", "client_calls"),
    ):
        high = getattr(settings, larger)
        reason = f"must not be above {BY_NAME[larger].full_key} = {high}"
        _hold(settings, smaller, getattr(settings, smaller) <= high, reason)


def _hold(settings: Settings, name: str, holds: bool, reason: str) -> None:
    if not holds:
        value = str(getattr(settings, name))
        raise ConfigError(BY_NAME[name].full_key, value, reason)


def connection_limit(settings: Settings, open_files: int | None = None) -> ConnectionLimit:
    """How many connections fit the files that this process may open, with a warning if that is
    fewer than configured. `open_files` None: the system is asked. Raises ConfigError if not even
    one connection fits."""
    files = open_files_allowed() if open_files is None else open_files
    room = files - settings.reserved_files
    if room < 1:
        reason = f"leaves no connections of the {files} files this process may open"
        raise ConfigError(BY_NAME["reserved_files"].full_key, str(settings.reserved_files), reason)
    if settings.connections <= room:
        return ConnectionLimit(settings.connections)
    warning = (
        f"connections are limited to {room}, not {settings.connections}: this process may open "
        f"{files} files (raise ulimit -n or LimitNOFILE)"
    )
    return ConnectionLimit(room, (warning,))
