"""The table of a name server's audited requests: how each names its object, and that one's state.

Registrations are no events: brokers make them by themselves. That every other change has a row is
held by tests/unit/broker/requests/test_audited.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from aerobee.access.audit.auditing import Audited, Auditing
from aerobee.access.audit.making import make_sink
from aerobee.access.audit.recorder import Recorder
from aerobee.access.control import AccessControl
from aerobee.config.model import BY_NAME, Settings
from aerobee.nameserver.kv import KvTable
from aerobee.nameserver.routes import RouteTable
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.admin import KvHeader

_ABSENT = "absent"


def audited_requests(routes: RouteTable, kv: KvTable) -> Mapping[int, Audited]:
    """The rows of a name server."""

    def value(command: Command) -> str:
        header = KvHeader.from_ext(command.ext)
        found = kv.get(header.namespace, header.key)
        return _ABSENT if found is None else found

    def brokers(command: Command) -> str:
        queues = routes.topics.get(command.ext.get("topic", ""))
        return "brokers=" + ",".join(sorted(queues)) if queues else _ABSENT

    return {
        Code.PUT_KV_CONFIG: Audited(_key, value),
        Code.DELETE_KV_CONFIG: Audited(_key, value),
        Code.WIPE_WRITE_PERM_OF_BROKER: Audited(_broker),
        Code.ADD_WRITE_PERM_OF_BROKER: Audited(_broker),
        Code.DELETE_TOPIC_IN_NAMESRV: Audited(_topic, brokers),
        Code.REGISTER_TOPIC_IN_NAMESRV: Audited(_topic),
        # Always refused.
        Code.UPDATE_NAMESRV_CONFIG: Audited(lambda _command: ""),
    }


def name_server_audit(
    settings: Settings,
    routes: RouteTable,
    kv: KvTable,
    *,
    access: AccessControl | None,
    has_root: bool,
    loop: asyncio.AbstractEventLoop,
    clock_ms: Callable[[], int],
) -> Auditing:
    """The audit of a name server whose `audit.target` is not off; its files lie in the store, or
    beside that of the key-value table where this has a place of its own. `has_root`: that place was
    there when the name server started."""
    kv_path, store = settings.nameserver_kv_path, Path(settings.store_path)
    root = Path(kv_path).parent if kv_path else store
    # Name servers that were started in one place, each on a port of its own, have a folder each.
    port = settings.nameserver_port
    own = "nameserver" if port in (0, BY_NAME["nameserver_port"].default) else f"nameserver-{port}"
    folder = root / "audit" / own
    sink = make_sink(
        settings.audit_target, folder, settings.audit_bytes, root=root if has_root else None
    )
    table = audited_requests(routes, kv)
    return Auditing(Recorder(sink, loop, clock_ms), table, access, _refusal_of)


def _refusal_of(error: Exception) -> str | None:
    return error.remark if isinstance(error, BadRequest) else None


def _key(command: Command) -> str:
    header = KvHeader.from_ext(command.ext)
    return f"{header.namespace}/{header.key}"


def _broker(command: Command) -> str:
    return command.ext.get("brokerName", "")


def _topic(command: Command) -> str:
    return command.ext.get("topic", "")
