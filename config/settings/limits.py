"""Settings that bound what anybody can make the broker do (docs/reliability.md 8).

`config/limits.py` checks their relations.
"""

from dataclasses import dataclass
from typing import ClassVar

from aerobee.config.settings.setting import I32_MAX, setting

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Every queue, buffer and count that input from outside can make grow."""

    section: ClassVar[str] = "limits"

    max_frame_bytes: int = setting(
        16 * _MIB,
        "frameMaxLength",
        within=(1024, 256 * _MIB),
        aliases=("com.rocketmq.remoting.frameMaxLength",),
        why="""Largest frame with its length word, judged before anything is allocated; a larger
        announcement closes the connection. RocketMQ: a JVM property.""",
    )
    max_header_bytes: int = setting(
        256 * _KIB,
        within=(1024, 16 * _MIB),
        why="Largest frame header. Properties may be 32,767 bytes and JSON multiplies by six.",
    )
    frame_base_seconds: int = setting(
        30,
        within=(1, 3600),
        why="Time every frame gets to arrive whole, besides its size at frame_bytes_per_second.",
    )
    frame_bytes_per_second: int = setting(
        64 * _KIB,
        unit="bytes/s",
        within=(1, I32_MAX),
        why="Slowest rate at which a large frame may trickle in; slower connections are closed.",
    )
    idle_seconds: int = setting(
        120,
        "serverChannelMaxIdleTimeSeconds",
        within=(1, 86_400),
        why="A connection silent both ways for this long is closed; clients beat every 30 s.",
    )
    connections: int = setting(
        10_000,
        within=(1, 1_000_000),
        why="Most client connections; less if the process may not open as many files.",
    )
    connections_per_address: int = setting(
        5000,
        within=(1, 1_000_000),
        why="Most connections from one address; a NAT gateway looks like one address.",
    )
    reserved_files: int = setting(
        256,
        within=(32, 100_000),
        why="Open files kept back from connections for the store's own.",
    )
    inbound_bytes: int = setting(
        128 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="Memory all half-received frames may take; beyond it the broker stops reading.",
    )
    outbound_bytes: int = setting(
        128 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="Unsent answers of all connections; beyond it the slowest is closed.",
    )
    outbound_high_water_bytes: int = setting(
        1 * _MIB,
        "writeBufferHighWaterMark",
        within=(64 * _KIB, I32_MAX),
        why="Unsent answers of one connection above which nothing more is read from it.",
    )
    outbound_bytes_per_connection: int = setting(
        64 * _MIB,
        unit="bytes",
        within=(1 * _MIB, I32_MAX),
        why="Unsent answers of one connection above which it is closed.",
    )
    calls_per_connection: int = setting(
        16_384,
        within=(1, 1_000_000),
        why="Questions of the broker to one client that wait for an answer.",
    )
    held_pulls: int = setting(
        100_000,
        "pullThreadPoolQueueCapacity",
        within=(1, 10_000_000),
        why="Most pulls that wait for a message; more are answered at once, and ask again.",
    )
    fast_failure: bool = setting(
        True,
        "brokerFastFailureEnable",
        why="""Refuse with SYSTEM_BUSY what has waited in the broker for too long, instead of doing
        what its sender has given up by then. A time of 0 below lets that kind wait.""",
    )
    send_queue_wait_ms: int = setting(
        200,
        "waitTimeMillsInSendQueue",
        unit="ms",
        within=(0, I32_MAX),
        why="Longest that a send may have waited behind others of its connection.",
    )
    pull_queue_wait_ms: int = setting(
        5000,
        "waitTimeMillsInPullQueue",
        unit="ms",
        within=(0, I32_MAX),
        why="The same for a pull; one that is held for a message does not wait in this sense.",
    )
    heartbeat_queue_wait_ms: int = setting(
        31_000,
        "waitTimeMillsInHeartbeatQueue",
        unit="ms",
        within=(0, I32_MAX),
        why="The same for a heartbeat.",
    )
    held_pull_bytes: int = setting(
        128 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="Memory the pulls that wait may take, with their filters; more are answered at once.",
    )
    max_request_bytes: int = setting(
        2 * _MIB,
        within=(64 * _KIB, 256 * _MIB),
        why="""Largest body of a request that carries no messages (heartbeats, locks, settings): one
        JSON document is read in one go, and holds everybody else up meanwhile.""",
    )
    max_topics: int = setting(
        20_000, within=(16, 1_000_000), why="Most topics. Each is files, memory and registration."
    )
    max_queues: int = setting(
        200_000, within=(16, 10_000_000), why="Most queues of all topics together."
    )
    max_queues_per_topic: int = setting(1024, within=(1, 65_536), why="Most queues of one topic.")
    max_groups: int = setting(20_000, within=(16, 1_000_000), why="Most consumer groups.")
    max_inflated_bytes: int = setting(
        32 * _MIB,
        within=(64 * _KIB, I32_MAX),
        why="Largest registration body after inflating it.",
    )
