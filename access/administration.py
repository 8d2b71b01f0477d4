"""Requests that can be bound to a port of their own: `admin.port` of a broker, and
`nameserver.admin_port`.

They are the administrators' of the tables in needs.py, without what machines ask for by themselves:
slaves their master's tables and log, brokers to be registered.
"""

from __future__ import annotations

from typing import Final

from aerobee.access.needs import BROKER_NEEDS, NAME_SERVER_NEEDS, administrator
from aerobee.protocol.codes import RequestCode, ResponseCode, request_name
from aerobee.protocol.errors import BadRequest

OF_BROKERS: Final = frozenset(
    code for code, needs in BROKER_NEEDS.items() if needs is administrator
) - {
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.LOG_RANGES,
    RequestCode.REPLICA_TABLES,
}
OF_NAME_SERVERS: Final = NAME_SERVER_NEEDS.keys() - {
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
}


def not_here(code: int, setting: str, how: str) -> BadRequest:
    """The answer of a port for clients to such a code; `setting` names the other port, and `how`
    says how a tool is pointed at it."""
    return BadRequest(
        ResponseCode.NO_PERMISSION,
        f"{request_name(code)} (code {code}) is not taken at this port: administrators have one of "
        f"their own, which {setting} says ({how})",
    )
