"""The options of a client: one frozen object per role, every value with unit and reason.

The defaults are RocketMQ's own where it has one, so that a group of mixed clients behaves alike.
"""

from __future__ import annotations

import enum
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from aerobee.address_list import address_list
from aerobee.client.assign import Strategy, average
from aerobee.client.errors import CallerError, checking_arguments
from aerobee.client.message import MAX_BODY_BYTES
from aerobee.protocol.names import TRACE_TOPIC, check_group_name

Addresses = str | Sequence[str]
"""`"host:port"`, several joined by `;` or `,`, or a sequence of them."""


class HeaderForm(enum.IntEnum):
    """How request headers are written (WIRE.md 1.2, 1.3); answers are read in either form."""

    JSON = 0
    BINARY = 1


class ConsumeFrom(enum.Enum):
    """Where a group without a stored offset starts; values are the heartbeat's names."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Model(enum.Enum):
    """Clustering: each message to one member of the group; broadcasting: to every member."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of every role."""

    header_form: HeaderForm = HeaderForm.JSON
    instance_name: str = ""  # "" makes one unique to this client: pid#clock
    connect_timeout_s: float = 3.0
    call_timeout_s: float = 5.0
    heartbeat_interval_s: float = 30.0  # the broker forgets a client after 120 s of silence
    route_refresh_interval_s: float = 30.0
    # Every request is signed with them, for brokers with access control; give both or neither.
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    use_tls: bool = False  # towards name servers and brokers
    trust_store: str | None = None  # PEM file; without one every certificate is taken, as in Java
    # PEM files, for brokers that ask for a certificate; the first may hold the key too.
    certificate: str | None = None
    certificate_key: str | None = None
    certificate_password: str | None = field(default=None, repr=False)
    # Producers and push consumers: trace what became of each message, for `mqadmin
    # queryMsgTraceById`.
    trace: bool = False
    trace_topic: str = TRACE_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """Options of a producer."""

    send_timeout_s: float = 3.0  # of one attempt
    retries: int = 2  # further attempts, on another broker if possible
    retry_when_not_flushed: bool = False  # stored but flush timed out: retrying may duplicate
    max_in_flight: int = 1000  # sends that wait for answers at the same time
    max_body_bytes: int = MAX_BODY_BYTES
    default_topic: str = "TBW102"  # the template of topics made by their first message
    default_topic_queues: int = 4
    avoid_failed_broker_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions(ProducerOptions):
    """Options of a producer of transactions."""

    check_concurrency: int = 20  # checks at work at the same time, and threads for plain listeners
    checks_waiting: int = 2000  # checks that wait for their turn; brokers ask again about others


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions(ClientOptions):
    """Options of a push consumer."""

    model: Model = Model.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    # For ConsumeFrom.TIMESTAMP; RocketMQ's default is likewise half an hour before the start.
    consume_timestamp_ms: int = field(
        default_factory=lambda: int(time.time() * 1000) - 30 * 60 * 1000
    )
    orderly: bool = False
    strategy: Strategy = average
    concurrency: int = 20  # listeners at work at the same time (concurrent) or threads (both)
    consume_batch: int = 1  # most messages in one call of the listener
    pull_batch: int = 32
    suspend_ms: int = 15_000  # how long the broker may hold an empty pull
    max_reconsume: int = 16  # concurrent: to the dead-letter topic after that many redeliveries
    max_orderly_reconsume: int = 2**31 - 1  # orderly: block on a bad message rather than skip it
    orderly_suspend_ms: int = 1000
    cached_messages_per_queue: int = 1000
    cached_bytes_per_queue: int = 100 * 1024 * 1024
    cached_span_per_queue: int = 2000  # oldest to newest offset; concurrent mode only
    rebalance_interval_s: float = 20.0
    offset_store_interval_s: float = 5.0
    lock_interval_s: float = 20.0  # the broker's lease is 60 s
    pull_retry_delay_s: float = 3.0
    local_retry_delay_s: float = 5.0  # of a message that could not be given back to a broker
    close_timeout_s: float = 10.0  # how long close() waits for listeners at work
    offset_directory: Path = Path.home() / ".aerobee_offsets"  # broadcasting only


OptionsT = TypeVar("OptionsT", bound=ClientOptions)


def checked_options(options: object, kind: type[OptionsT]) -> OptionsT:
    """The options of a role, its defaults for None; CallerError when they are another role's."""
    if options is None:
        return kind()
    if not isinstance(options, kind):
        raise CallerError(f"options must be {kind.__name__}, got {type(options).__name__}")
    return options


def checked_group(group: object) -> str:
    """The group's name itself; CallerError with the rule it breaks."""
    if isinstance(group, ClientOptions):
        raise CallerError(f"a group's name stands here: give {type(group).__name__} as options=")
    if not isinstance(group, str):
        raise CallerError(f"a group's name must be a str, got {type(group).__name__}")
    with checking_arguments():
        return check_group_name(group)


def checked_timeout(timeout_s: object) -> float:
    """The seconds to wait; CallerError when they are no number above 0."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise CallerError(f"timeout_s must be a number of seconds above 0, got {timeout_s!r}")
    return timeout_s


def parse_addresses(addresses: Addresses) -> tuple[str, ...]:
    """The addresses, in order and without repeats. Raises CallerError without any address."""
    texts = [addresses] if isinstance(addresses, str) else list(addresses)
    if not all(isinstance(text, str) for text in texts):
        raise CallerError(f"name server addresses must be texts, got {addresses!r}")
    found = address_list(";".join(texts))
    if not found:
        raise CallerError(f"no name server address in {addresses!r}")
    for address in found:
        split_address(address)
    return found


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` -> (host, port); CallerError when it is neither."""
    host, colon, port = address.rpartition(":")
    # The length is checked first: int() refuses thousands of digits in another way.
    is_port = port.isascii() and port.isdecimal() and len(port) <= _PORT_DIGITS
    is_host = host and not any(letter.isspace() or letter in ",;" for letter in host)
    if not colon or not is_host or not is_port or not 0 < int(port) < 65536:
        raise CallerError(f"an address must be host:port, got {address!r}")
    return host.strip("[]"), int(port)


def local_ip(peer: str) -> str:
    """The address this machine would use towards `peer`; nothing is sent (a UDP connect)."""
    host, port = split_address(peer)
    try:
        kind, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        # The second of a text that is no host; connecting to it says so.
        return "127.0.0.1"


_PORT_DIGITS: Final = 5
_UNIQUE: Final = "{pid}#{clock}"


def make_client_id(options: ClientOptions, ip: str) -> str:
    """`ip@instance`: by it the broker tells the members of a group apart, so it must be unique."""
    instance = options.instance_name or _UNIQUE.format(pid=os.getpid(), clock=time.monotonic_ns())
    return f"{ip}@{instance}"
