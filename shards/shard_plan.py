"""Computes the settings in which shards differ from the single configuration that all of them read.

| | shard 0 | shard N |
|---|---|---|
| store | DIR/shard-0 | DIR/shard-N |
| name | the broker's | the broker's, and -N |
| port for clients | broker.listen_port | 10 N above |
| port for slaves, where it opens | replication.ha_listen_port | 10 N above |
| the master that it follows | replication.ha_master_address, if it is given | 10 N above |
| port for administrators | admin.port, if it is not 0 | 10 N above |
| metrics, health | http.port + 1 | http.port + 1 + N; http.port itself is the supervisor's |
| name server | all: the supervisor's, unless others are given | |
| memory | all: the same part of what is there, less what the name server may take | |

Ten leave room for the VIP port (two below) and the HA port (one above).

Shard 0 has the name and the port of a broker without shards. A store that becomes shard 0's is
found by everything that knows it by its broker's name: consumers that keep offsets themselves,
checkpoints of Spark, order topics (docs/decisions/0017-shards.md).

The supervisor computes this to check ports and stores, each shard to run with it: it reads the
configuration itself, at SIGHUP too.
"""

import os
from collections.abc import Sequence
from typing import Final

from aerobee.config.bounds.memory import Memory, worst_cases
from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings
from aerobee.config.ports import Listener, listeners, reachable
from aerobee.config.setting_rules import is_master_address
from aerobee.shards import SHARDS_MAX
from aerobee.shards.shard_layout import shard_directory

#: The distance between the ports of two shards.
STRIDE: Final = 10
_PORT_HIGH: Final = 65_535
# The supervisor itself, and the page of metrics that it makes of theirs.
_SUPERVISOR_BYTES: Final = 64 << 20
_OF_THE_SUPERVISOR: Final = ("nameserver.port", "nameserver.admin_port", "http.port")
_NAMESERVER_ON: Final = ("nameserver_enabled",)


def name_server_address(settings: Settings) -> str:
    """`host:port` of the name server that runs beside the shards; "" without such a name server."""
    if not settings.nameserver_enabled:
        return ""
    return f"{reachable(settings.nameserver_host)}:{settings.nameserver_port}"


def speaks_tls(settings: Settings) -> bool:
    """Whether the name server that runs beside the shards takes only TLS."""
    return bool(name_server_address(settings)) and settings.tls_mode == "enforcing"


def shard_changes(
    settings: Settings, number: int, count: int, memory: Memory | None
) -> dict[str, object]:
    """The settings of one of `count` shards that differ, by attribute. `settings` are those of a
    broker without shards; `memory` is for all shards together."""
    changes: dict[str, object] = {
        "store_path": shard_directory(settings.store_path, number),
        "broker_name": f"{settings.broker_name}-{number}" if number else settings.broker_name,
        "nameserver_enabled": False,
        "name_servers": settings.name_servers or name_server_address(settings),
        # To a shard the name server of all is a foreign name server.
        "tls_outgoing": settings.tls_outgoing or speaks_tls(settings),
        "memory_ratio_percent": -(-settings.memory_ratio_percent // count),
    }
    for name in ("commit_log_path", "read_only_commit_log_paths"):
        if paths := getattr(settings, name):
            own = (shard_directory(path.strip(), number) for path in paths.split(","))
            changes[name] = ",".join(own)
    if settings.listen_port:
        changes["listen_port"] = settings.listen_port + number * STRIDE
    if settings.admin_port:
        changes["admin_port"] = settings.admin_port + number * STRIDE
    if settings.replicates and settings.ha_listen_port:
        changes["ha_listen_port"] = settings.ha_listen_port + number * STRIDE
    if is_master_address(settings.ha_master_address):
        host, _, port = settings.ha_master_address.rpartition(":")
        changes["ha_master_address"] = f"{host}:{int(port) + number * STRIDE}"
    if settings.http_port:
        changes["http_port"] = settings.http_port + 1 + number
    if memory is not None and not settings.memory_bytes:
        changes["memory_bytes"] = _memory_each(settings, count, memory)
    elif settings.memory_bytes:
        changes["memory_bytes"] = max(1, settings.memory_bytes // count)
    return changes


def check_plan(settings: Settings, count: int) -> None:
    """Raise ConfigError if there are too few ports for the shards."""
    last = count - 1
    assert 1 < count <= SHARDS_MAX
    ha_port = settings.ha_listen_port if settings.replicates else 0
    for key, port, end in (
        ("broker.listen_port", settings.listen_port, settings.listen_port + last * STRIDE + 1),
        ("replication.ha_listen_port", ha_port, ha_port + last * STRIDE),
        ("admin.port", settings.admin_port, settings.admin_port + last * STRIDE),
        ("http.port", settings.http_port, settings.http_port + 1 + last),
    ):
        if port and end > _PORT_HIGH:
            reason = (
                f"leaves no room for the ports of {count} shards up to {end}; choose a lower one"
            )
            raise ConfigError(key, str(port), reason)


def all_listeners(settings: Settings, shards: Sequence[Settings]) -> list[Listener]:
    """The ports of all processes; each names its process."""
    own = [found for found in listeners(settings) if found.key in _OF_THE_SUPERVISOR]
    for number, shard in enumerate(shards):
        who = f"shard {number}"
        own += [
            found._replace(
                key=f"{found.key} of {who}",
                what=f"{found.what}, of {who}",
                remedy=f"{who}: {found.remedy}",
            )
            for found in listeners(shard)
        ]
    return own


def name_server_options(settings: Settings) -> list[str]:
    """Arguments that `aerobee nameserver` needs to be the name server of these shards."""
    return [
        *("--host", settings.nameserver_host, "--port", str(settings.nameserver_port)),
        *("--set", f"nameserver.kv_path={os.path.abspath(settings.kv_file)}"),
    ]


def _memory_each(settings: Settings, count: int, memory: Memory) -> int:
    beside = _SUPERVISOR_BYTES
    if settings.nameserver_enabled:
        beside += sum(
            case.bytes
            for case in worst_cases(settings)
            if case.limit.times == _NAMESERVER_ON or case.name == "the process itself"
        )
    return max(1, (memory.bytes - beside) // count)
