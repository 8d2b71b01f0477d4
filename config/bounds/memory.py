"""How much memory the limits allow at worst, and how much there is.

Each setting that bounds something says what one unit of it may take (`limit=` in
`config/settings/`); what is bounded by a constant is listed in `FIXED`. The sum of all is what
somebody who fills every limit at once makes the broker hold. It is held against the memory of the
machine, or of the control group, at the start: a broker that can be filled beyond that can be
killed from outside, and should say so before it is.

Not in the sum: the pages of mapped files, which the kernel takes back when it needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from aerobee.config.model import SETTINGS, Settings
from aerobee.config.settings.setting import Limit

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
# A control group's limit above that counts as no limit (version 1 writes a huge number for that).
_NO_LIMIT: Final = 1 << 60


class Fixed(NamedTuple):
    """A bound that is a constant of the module that keeps it."""

    name: str
    value: int
    unit: str
    limit: Limit


FIXED: Final = (
    Fixed(
        "the process itself",
        1,
        "",
        Limit("interpreter, code, tables of an empty broker", "-", "process_resident_memory_bytes",
              bytes_each=64 * _MIB),
    ),
    Fixed(
        "TLS of client connections",
        1,
        "",
        Limit("keys and records of each connection, where TLS is taken", "as connections",
              "aerobee_tls_handshakes_total", bytes_each=48 * _KIB,
              times=("connections", "client_ports", "takes_tls")),
    ),
    Fixed(
        "client groups",
        200_000,
        "entries",
        Limit("connections in groups, one for each group of each", "the heartbeat gets code 1",
              "aerobee_clients", bytes_each=600),
    ),
    Fixed(
        "lists of members",
        4 * _MIB,
        "bytes",
        Limit("client ids of large groups, encoded for all who ask for them",
              "encoded again for each who asks", "aerobee_clients", bytes_each=1),
    ),
    Fixed(
        "order locks",
        100_000,
        "locks",
        Limit("queues that are consumed in order, by group, for a minute from their last lock",
              "more are not locked, and asked for again", "the answer to LOCK_BATCH_MQ",
              bytes_each=512),
    ),
    Fixed(
        "files of accounts",
        8 * _MIB,
        "bytes",
        Limit("all files of accounts together, and 50,000 accounts in them; while they are read "
              "again, the ones before as well", "a start is refused, with which file is too large; "
              "later the accounts stay as they were, and the log and `/ready` say why",
              'aerobee_check_ok{check="accounts"}', bytes_each=52, times=("acl_enabled",)),
    ),
    Fixed(
        "audited changes under way",
        1_000,
        "changes",
        Limit("changes of administrators with their events; as many refused requests wait besides "
              "while events cannot be written", "code 2; further refusals have no event",
              "aerobee_audit_events_total", bytes_each=16 * _KIB),
    ),
    Fixed(
        "waiting sends",
        50_000,
        "sends",
        Limit("sends that wait for their sync, or for slaves", "code 2", "aerobee_waiting_acks",
              bytes_each=1 * _KIB, times=("answers_wait",)),
    ),
    Fixed(
        "slaves",
        16,
        "connections",
        Limit("slaves that take the log, four of one address at most", "closed at once",
              "-", bytes_each=192 * _KIB, times=("replicates",)),
    ),
    Fixed(
        "unchecked bytes of the master",
        64 * _MIB,
        "bytes",
        Limit("bytes of a master's log that are no whole record yet, on a slave",
              "the connection ends, and the master is asked again", "-", bytes_each=1,
              times=("starts_as_slave",)),
    ),
    Fixed(
        "waiting questions for batches",
        10_000,
        "requests",
        Limit("questions how a staged batch stands that wait for its end", "code 2 with the reason",
              'aerobee_refused_requests_total{reason="system_busy"}', bytes_each=1 * _KIB),
    ),
    Fixed(
        "stages given up",
        100_000,
        "stages",
        Limit("names of stages that an intent on its way can no longer name",
              "the oldest are forgotten", "the log: stages expired", bytes_each=200),
    ),
    Fixed(
        "counters",
        50_000,
        "series",
        Limit("counters by group and topic", "counted together as `__other__`",
              "aerobee_counters_overflowed_total", bytes_each=1 * _KIB),
    ),
    Fixed(
        "queue counters",
        50_000,
        "queues",
        Limit("counters by queue, of topics and of groups", "counted nowhere by queue",
              "aerobee_counters_overflowed_total", bytes_each=300),
    ),
    Fixed(
        "beginnings of groups",
        10_000,
        "queues",
        Limit("where groups began that begin at the end of queues",
              "the oldest are forgotten: how far those groups are behind there is not known",
              "aerobee_consumer_lag_unknown_queues", bytes_each=600),
    ),
    Fixed(
        "queues watched for groups that stand",
        20_000,
        "queues",
        Limit("queues that groups online are behind in, at two looks",
              "of further ones nobody says that they are stuck", "aerobee_group_stuck_queues",
              bytes_each=600),
    ),
    Fixed(
        "remembered refusals",
        1_000,
        "kinds",
        Limit("refusals of the last hour, by cause, codes and peer",
              "further kinds are counted together", "aerobee_refused_requests_total",
              bytes_each=3 * _KIB),
    ),
    Fixed(
        "traffic history",
        10_000,
        "series",
        Limit("what topics, groups and queues did in the last minute, hour and day",
              "mqadmin statsAll shows none", "the answer to VIEW_BROKER_STATS_DATA",
              bytes_each=2 * _KIB),
    ),
    Fixed(
        "deleted topics",
        10_000,
        "names",
        Limit("deletions that are remembered while messages wait from before them",
              "a deletion gets code 2", "aerobee_deleted_topics", bytes_each=600),
    ),
    Fixed(
        "summed lines of the log",
        3_000,
        "kinds",
        Limit("the last event of each kind that has one line a minute",
              "those of one text are counted as one kind", "the field unlogged of such lines",
              bytes_each=4 * _KIB),
    ),
    Fixed(
        "unsent HTTP answers",
        32 * _MIB,
        "bytes",
        Limit(
            "answers of the HTTP port that peers have not taken",
            "503",
            'aerobee_http_answers_total{status="503"}',
            bytes_each=1,
            times=("http_enabled",),
        ),
    ),
    Fixed(
        "name server, routes",
        200_000,
        "entries",
        Limit("routes of other brokers: a topic of a broker each", "code 1 with the reason",
              'aerobee_nameserver_requests_total{request_code="register_broker"} and the log',
              bytes_each=300, times=("nameserver_enabled",)),
    ),
    Fixed(
        "name server, topics that went",
        10_000,
        "topics",
        Limit("why a topic has no route any more", "the oldest is forgotten", "-",
              bytes_each=300, times=("nameserver_enabled",)),
    ),
    Fixed(
        "name server, changes that wait",
        20_000,
        "changes",
        Limit("changes of the key-value table that wait for their save",
              "the next ones wait before they are served",
              'aerobee_nameserver_requests_total{request_code="put_kv_config"}',
              bytes_each=1 * _KIB, times=("nameserver_enabled",)),
    ),
    Fixed(
        "appended messages",
        65_536,
        "messages",
        Limit("messages that are stored and not dispatched yet",
              "dispatch reads the log instead", "rocketmq_storage_dispatch_behind_bytes",
              bytes_each=1 * _KIB),
    ),
    Fixed(
        "decided transactions",
        20_000,
        "transactions",
        Limit("how the last transactions were decided, for those who ask twice",
              "the oldest is forgotten", "-", bytes_each=150),
    ),
    Fixed(
        "waiting ends of transactions",
        20_000,
        "requests",
        Limit("ends of transactions that wait for their sync, or for slaves", "code 2",
              "aerobee_waiting_acks", bytes_each=1 * _KIB, times=("answers_wait",)),
    ),
    Fixed(
        "rates of groups",
        50_000,
        "rates",
        Limit("how quickly groups consume topics, for mqadmin", "measured anew", "-",
              bytes_each=300),
    ),
    Fixed(
        "damage reported",
        20_000,
        "entries",
        Limit("damaged entries and records that readers came upon", "logged again, or not",
              "aerobee_store_damage_found_total", bytes_each=500),
    ),
    Fixed(
        "places of waiting messages",
        8_192,
        "places",
        Limit("where the hours of the timer's queues begin, for how much waits", "found anew",
              "-", bytes_each=150),
    ),
    Fixed(
        "white addresses",
        4_096,
        "addresses",
        Limit("addresses that were compared with the white lists", "compared anew", "-",
              bytes_each=150),
    ),
    Fixed(
        "rights that were asked for",
        20_000,
        "answers",
        Limit("what accounts may do, and which addresses are white, in the compiled form",
              "asked anew", "-", bytes_each=1_300, times=("acl_enabled",)),
    ),
    Fixed(
        "routes of plain pulls",
        32 * _MIB,
        "bytes",
        Limit("what pulls that are alike get, with the tags that they want, in the compiled form",
              "found anew", "-", bytes_each=1),
    ),
    Fixed(
        "remembered texts",
        21_000,
        "texts",
        Limit("hashes of tags, words of properties, names and hosts that came last",
              "the oldest is forgotten", "-", bytes_each=1 * _KIB),
    ),
    Fixed(
        "name server, unfinished frames",
        64 * _MIB,
        "bytes",
        Limit("frames to the embedded name server that are not yet whole", "as inbound_bytes",
              'aerobee_read_buffer_bytes{server="nameserver"}', bytes_each=1,
              times=("nameserver_enabled",)),
    ),
    Fixed(
        "name server, unsent answers",
        128 * _MIB,
        "bytes",
        Limit("routes that peers have not taken", "as outbound_bytes",
              'aerobee_write_buffer_bytes{server="nameserver"}', bytes_each=1,
              times=("nameserver_enabled",)),
    ),
)  # fmt: skip


class WorstCase(NamedTuple):
    """One limit filled: `key` is the setting to lower, empty for a constant."""

    key: str
    name: str
    value: int
    unit: str
    limit: Limit
    bytes: int


class Memory(NamedTuple):
    """The memory that the process may take, and who says so."""

    bytes: int
    source: str


def worst_cases(settings: Settings) -> list[WorstCase]:
    """Every limit, in the order of the manual; the constants last."""
    found = []
    for setting in SETTINGS:
        if setting.limit is not None:
            value = getattr(settings, setting.name)
            worst = _worst(settings, value, setting.limit)
            key = setting.full_key
            found.append(WorstCase(key, key, value, setting.unit, setting.limit, worst))
    for name, value, unit, limit in FIXED:
        found.append(WorstCase("", name, value, unit, limit, _worst(settings, value, limit)))
    return found


def _worst(settings: Settings, value: int, limit: Limit) -> int:
    worst = value * limit.bytes_each
    for name in limit.times:
        worst *= getattr(settings, name)
    return int(worst)


def memory_warning(settings: Settings, memory: Memory | None) -> str | None:
    """The warning when the limits together allow more than there is; it names those to lower."""
    cases = worst_cases(settings)
    total = sum(case.bytes for case in cases)
    if memory is None or total <= memory.bytes:
        return None
    named, excess = [], total - memory.bytes
    for case in sorted(cases, key=lambda case: case.bytes, reverse=True):
        if case.key and excess > 0:
            named.append(f"{case.key} ({size_text(case.bytes)})")
            excess -= case.bytes
    return (
        f"the limits allow {size_text(total)} of memory when all are filled, and {memory.source} "
        f"has {size_text(memory.bytes)}: give it more, or lower {', '.join(named)} "
        "(docs/limits.md)"
    )


def memory_of(settings: Settings, available: Memory | None) -> Memory | None:
    """The memory that the limits are held against: the share that is set, else all `available`."""
    if settings.memory_bytes:
        return Memory(settings.memory_bytes, "its share (broker.memory_bytes)")
    return available


def available_memory(root: str = "/", process: int | None = None) -> Memory | None:
    """The smallest of the machine's memory and the limits of the control groups of this process, or
    of another; None when the system does not say. Files are looked for below `root`."""
    found = [*_machine(Path(root)), *_control_groups(Path(root), process)]
    return min(found, default=None)


def _machine(root: Path) -> Iterator[Memory]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            yield Memory(int(line.split()[1]) * _KIB, "the machine")


def _control_groups(root: Path, process: int | None) -> Iterator[Memory]:
    """Each limit from the process's group up to the topmost; version 2, then version 1."""
    for line in _lines(root / f"proc/{process or 'self'}/cgroup"):
        _, controllers, path = line.split(":", 2)
        names: tuple[str, ...]
        if not controllers:
            # Above `high` the kernel slows a group down; above `max` it kills.
            mounted, names = root / "sys/fs/cgroup", ("memory.max", "memory.high")
        elif "memory" in controllers.split(","):
            mounted, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes",)
        else:
            continue
        group = Path(path.lstrip("/"))
        for directory, name in product((group, *group.parents), names):
            for text in _lines(mounted / directory / name):
                if text.isdecimal() and int(text) < _NO_LIMIT:
                    yield Memory(int(text), "its control group")


def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ()  # not mounted here, or another kernel's


def size_text(count: float) -> str:
    """Bytes for people: 64 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"
