"""The table of a name server's audited requests: how each names its object, and that one's state.

Registrations are no events: brokers make them by themselves. tests/unit/nameserver/test_audit.py
holds that every other change has a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from aerobee.access.audit.auditing import Audited, Auditing
from aerobee.access.audit.making import make_sink
from aerobee.access.audit.recorder import Recorder
from aerobee.access.control import AccessControl
from aerobee.config.model import Settings
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
        Code.PUT_KV_CONFIG: Audited("kv_put", _key, value),
        Code.DELETE_KV_CONFIG: Audited("kv_delete", _key, value),
        Code.WIPE_WRITE_PERM_OF_BROKER: Audited("write_permission_wipe", _broker),
        Code.ADD_WRITE_PERM_OF_BROKER: Audited("write_permission_add", _broker),
        Code.DELETE_TOPIC_IN_NAMESRV: Audited("topic_delete_in_name_server", _topic, brokers),
        Code.REGISTER_TOPIC_IN_NAMESRV: Audited("topic_register_in_name_server", _topic),
        # Always refused.
        Code.UPDATE_NAMESRV_CONFIG: Audited("name_server_settings_update", lambda _command: ""),
    }


def name_server_audit(
    settings: Settings,
    routes: RouteTable,
    kv: KvTable,
    *,
    access: AccessControl | None,
    loop: asyncio.AbstractEventLoop,
    clock_ms: Callable[[], int],
) -> Auditing:
    """The audit of a name server whose `audit.target` is not off; its files lie beside those of the
    key-value table."""
    folder = Path(settings.kv_file).parent / "audit"
    sink = make_sink(settings.audit_target, folder, settings.audit_bytes, makes_parents=True)
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
