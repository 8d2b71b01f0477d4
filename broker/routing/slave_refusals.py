"""The requests that a slave refuses, with the codes of RocketMQ (protocol/WIRE.md 3).

A slave takes no messages, decides no transactions, and has the topics and groups of its master.
Other requests are served as on a master: pulls, queries, offsets, memberships and locks.

A handler is chosen once, and asks for the role with each request, because the role may change.
"""

from collections.abc import Mapping
from typing import Final

from aerobee.broker.routing.role import Role
from aerobee.broker.routing.router import Handler
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.serving import Answer

_NO_MESSAGES: Final = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "this broker is a slave and takes no messages: send to the master of this broker name, which "
    "clients find through the name server",
)
_NO_DECISIONS: Final = (
    ResponseCode.SLAVE_NOT_AVAILABLE,
    "this broker is a slave and decides no transactions: the master of this broker name does",
)
_NO_CHANGES: Final = (
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker: this broker is a slave and has "
    "the topics and groups of its master, change them there",
)
_NOT_KNOWN: Final = (
    ResponseCode.SYSTEM_ERROR,
    "this broker is a slave and does not know which messages wait: ask the master of this broker "
    "name",
)

_NO_MASTER: Final = (
    ResponseCode.SYSTEM_ERROR,
    "this broker is a slave itself: its tables are those of its master, ask that broker",
)

#: Response code and reason by request code.
REFUSED_ON_SLAVES: Final[Mapping[int, tuple[int, str]]] = {
    **dict.fromkeys(
        (
            Code.SEND_MESSAGE,
            Code.SEND_MESSAGE_V2,
            Code.SEND_BATCH_MESSAGE,
            Code.CONSUMER_SEND_MSG_BACK,
            Code.SEND_REPLY_MESSAGE,
            Code.SEND_REPLY_MESSAGE_V2,
            Code.RECALL_MESSAGE,
            # The table of staged batches is made of the log where they are published only.
            Code.STAGE_CHUNK,
            Code.STAGE_INTENT,
            Code.STAGE_STATUS,
            Code.STAGE_ABORT,
        ),
        _NO_MESSAGES,
    ),
    Code.END_TRANSACTION: _NO_DECISIONS,
    # RocketMQ's slave fails to store the half message again.
    Code.RESUME_CHECK_HALF_MESSAGE: (ResponseCode.SYSTEM_ERROR, _NO_DECISIONS[1]),
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_TOPIC,
            Code.DELETE_TOPIC_IN_BROKER,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            Code.DELETE_SUBSCRIPTIONGROUP,
        ),
        _NO_CHANGES,
    ),
    Code.WAITING_MESSAGES: _NOT_KNOWN,
    Code.REPLICA_TABLES: _NO_MASTER,
}


def refused_on_slaves(role: Role, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Handlers that refuse what a slave does not serve, while the broker is a slave."""
    return {
        code: _unless_slave(role, handle, *REFUSED_ON_SLAVES[code])
        if code in REFUSED_ON_SLAVES
        else handle
        for code, handle in handlers.items()
    }


def _unless_slave(role: Role, handle: Handler, refused_with: int, why: str) -> Handler:
    def serve(connection: Connection, command: Command) -> Answer:
        if role.is_slave:
            raise BadRequest(refused_with, why)
        return handle(connection, command)

    return serve
