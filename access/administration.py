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

#: Changes of administrators: each is an audit event, whether it is made or refused. How its object
#: is named stands in broker/requests/administration/audited.py, or in nameserver/audited.py.
AUDITED_OF_BROKERS: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.DRAIN,
    }
)
#: The other requests of administrators: these only ask. A request code is in one of both sets.
ASKED_OF_BROKERS: Final = frozenset(
    {
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.WAITING_MESSAGES,
        RequestCode.MESSAGE_STATE,
        RequestCode.AUDIT_EVENTS,
        RequestCode.DRAIN_STATUS,
        RequestCode.BROKER_STATUS,
        RequestCode.CLIENTS,
    }
)
AUDITED_OF_NAME_SERVERS: Final = frozenset(OF_NAME_SERVERS - {RequestCode.AUDIT_EVENTS})


def not_here(code: int, setting: str, how: str) -> BadRequest:
    """The answer of a port for clients to such a code; `setting` names the other port, and `how`
    says how a tool is pointed at it."""
    return BadRequest(
        ResponseCode.NO_PERMISSION,
        f"{request_name(code)} (code {code}) is not taken at this port: administrators have one of "
        f"their own, which {setting} says ({how})",
    )
