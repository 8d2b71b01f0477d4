"""Finding the message that a broker's id names, wherever its broker is now.

Such an id holds the address that the broker had when it stored the message, and the place in its
log. The address may have changed since: another host, a name in the place of a number, a port that
was moved. So the broker that is registered at that address is asked first, then all others that
name servers know. A record says itself under which address it was stored, so what another broker
has at the same place is not taken for the message; and an address that nobody registered is
never connected to, since in a client's own id the same bytes mean something else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from aerobee.client.connections.session import Session
from aerobee.client.errors import (
    BadAnswer,
    ClientError,
    ConnectFailed,
    NetworkError,
    PeerError,
    PeerFailed,
    checking_arguments,
    reading,
)
from aerobee.client.message import ReceivedMessage, received
from aerobee.protocol.bodies.routes import MASTER_ID, BrokerRoute
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.headers.client import ViewMessageHeader
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.record import decode_record
from aerobee.remoting.peers import address_text

# Brokers that are asked at the same time.
_AT_ONCE: Final = 16
# Brokers that an error names.
_NAMED: Final = 16


async def find_by_offset_id(
    session: Session, brokers: Mapping[str, BrokerRoute], text: str
) -> ReceivedMessage:
    """The message with that id, asked of these brokers.

    Raises CallerError for a text that is no such id, PeerFailed when no broker has the message (any
    more), ConnectFailed or a broker's refusal when no broker could be asked. The first two say
    where it was looked for.
    """
    with checking_arguments():
        host, port, log_offset = parse_offset_msg_id(text)
    search = _Search(session, text.upper(), log_offset)
    places = {name: _address(one) for name, one in brokers.items() if one.addresses}
    there = {name for name, at in places.items() if await _is_at(at, host, port)}
    for names in (sorted(there), sorted(places.keys() - there)):
        found = await search.at({name: places[name] for name in names})
        if found is not None:
            return found
    raise search.failure(f"log offset {log_offset}, stored under {address_text((host, port))}")


@dataclass(slots=True)
class _Search:
    """The places where a message was looked for: `asked` are places with their addresses."""

    session: Session
    msg_id: str
    log_offset: int
    asked: dict[str, str] = field(default_factory=dict)
    failed: dict[str, ClientError] = field(default_factory=dict)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def at(self, places: Mapping[str, str]) -> ReceivedMessage | None:
        """The message that the first of these brokers has under the id, None if no broker has
        it."""
        found = await asyncio.gather(*(self._ask(name, at) for name, at in places.items()))
        return next((message for message in found if message is not None), None)

    async def _ask(self, name: str, address: str) -> ReceivedMessage | None:
        place = f"{name} at {address}"
        ext = ViewMessageHeader(self.log_offset).to_ext()
        try:
            async with self.turns:
                answer = await self.session.call(address, RequestCode.VIEW_MESSAGE_BY_ID, ext)
            with reading(address):
                message = received(decode_record(answer.body), name)
        except PeerFailed:
            self.asked[place] = address
            return None
        except BadAnswer:  # RocketMQ's broker hands out what lies there, record or not
            self.asked[place] = address
            return None
        except (NetworkError, PeerError) as error:
            self.failed[f"{name} ({error})"] = error
            return None
        self.asked[place] = address
        return message if message.offset_msg_id == self.msg_id else None

    def failure(self, what: str) -> ClientError:
        """The error that the message is in none of these places."""
        text = f"no message with id {self.msg_id} ({what}): "
        refused = [error for error in self.failed.values() if isinstance(error, PeerError)]
        if refused and not self.asked:
            return refused[0]
        if not self.asked:
            return ConnectFailed(f"{text}no broker could be asked: {_list(self.failed)}")
        text += f"looked at {_list(self.asked)}"
        if self.failed:
            text += f"; could not be asked: {_list(self.failed)}"
        code = int(ResponseCode.SYSTEM_ERROR)
        return PeerFailed(text, address=next(iter(self.asked.values())), code=code, remark=None)


def _list(places: Collection[str]) -> str:
    shown = sorted(places)[:_NAMED]
    more = [f"and {len(places) - _NAMED} more"] if len(places) > _NAMED else []
    return ", ".join([*shown, *more]) or "no broker is registered"


def _address(broker: BrokerRoute) -> str:
    return broker.addresses.get(MASTER_ID) or broker.addresses[min(broker.addresses)]


async def _is_at(address: str, host: str, port: int) -> bool:
    """Whether a broker's registered address, which may be a name, is that of an id."""
    name, _, number = address.rpartition(":")
    if number != str(port):
        return False
    if name.strip("[]") == host:
        return True
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            name.strip("[]"), port, type=socket.SOCK_STREAM
        )
    except (OSError, ValueError):
        return False
    return any(entry[4][0] == host for entry in found)
