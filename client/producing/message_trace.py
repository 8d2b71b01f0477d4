"""Message trace: when each message was sent and consumed, by whom, and how that went.

Producers and consumers whose option `trace` is on send it in messages of their own to a topic that
`mqadmin queryMsgTraceById` and RocketMQ's consoles read (RMQ_SYS_TRACE_TOPIC unless `trace_topic`
says another). The form is that of the Java client's TraceDataEncoder: records of fields, U+0001
after each field but the last, U+0002 after the last; a message holds many records, and its keys are
the ids and keys of all messages that these are about.

Tracing must not hold up the traced calls: records wait here, at most `_MOST_WAITING` of them, and
go out together twice a second. Records without room, or that cannot be sent, are counted, logged
and lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aerobee.client.connections.background import Periodic
from aerobee.client.connections.session import Session
from aerobee.client.errors import ClientError
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ProducerOptions
from aerobee.client.producing.sender import Outgoing, Sender, SendResult, SendStatus
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.message.properties import (
    KEY_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MSG_REGION,
    PROPERTY_TAGS,
    PROPERTY_TRACE_ON,
    PROPERTY_TRANSACTION_PREPARED,
    decode_properties,
)

log = logging.getLogger(__name__)

_FIELD: Final = "\x01"
_RECORD: Final = "\x02"
_INTERVAL_S: Final = 0.5
_MOST_WAITING: Final = 2048
# One message of trace: far below the limits of a body and of properties, where its keys stand.
_MOST_BYTES: Final = 100_000
_MOST_KEY_BYTES: Final = 16_000
# RocketMQ writes this in place of a missing value.
_NONE: Final = "null"
# Its numbers of message types and of outcomes of a consumption.
_NORMAL, _HALF, _DELAYED = 0, 1, 3
_CONSUMED, _RAISED, _RETRIED = 0, 2, 4


@dataclass(frozen=True, slots=True)
class Consumption:
    """A call of the listener that goes on."""

    request_id: str
    started_ms: int
    messages: Sequence[ReceivedMessage]


class MessageTrace:
    """The trace that one client sends. Loop thread only."""

    def __init__(self, session: Session, group: str, topic: str) -> None:
        self._session = session
        self._group = group
        self._topic = topic
        self._options = ProducerOptions()
        self._sender = Sender(session, f"_INNER_TRACE_{group}", self._options)
        self._waiting: list[tuple[str, tuple[str, ...]]] = []
        self._rounds = Periodic(_INTERVAL_S, self.flush, "trace")
        self._turn = 0
        #: Records that were lost: no room, or their message could not be sent.
        self.lost = 0

    def start(self) -> None:
        """Begin to send the records."""
        self._session.tasks.spawn(self._rounds.run(), self._rounds.name)

    def sent(
        self,
        outgoing: Outgoing,
        address: str,
        result: SendResult,
        answer: Mapping[str, str],
        took_s: float,
    ) -> None:
        """A message was stored; `answer` has the fields of the broker's answer, which may say that
        its messages are not to be traced."""
        region = answer.get(PROPERTY_MSG_REGION)
        if outgoing.topic == self._topic or region is None or not _is_on(answer):
            return
        properties = decode_properties(outgoing.properties)
        keys = properties.get(PROPERTY_KEYS)
        took_ms = round(took_s * 1000)
        record = _record(
            "Pub",
            _now_ms() - took_ms,
            region,
            self._group,
            outgoing.topic,
            result.msg_id,
            properties.get(PROPERTY_TAGS),
            keys,
            address,
            len(outgoing.body),
            took_ms,
            _type_of(properties),
            result.offset_msg_id,
            result.status is SendStatus.OK,
        )
        self._tell(record, _names((result.msg_id,), keys))

    def consuming(self, messages: Sequence[ReceivedMessage]) -> Consumption | None:
        """The listener is about to be called; None if none of the messages is to be traced."""
        traced = [message for message in messages if _is_on(message.properties)]
        if not traced:
            return None
        begun = Consumption(self._sender.next_id(), _now_ms(), traced)
        for message in traced:
            keys = message.properties.get(PROPERTY_KEYS)
            record = _record(
                "SubBefore",
                begun.started_ms,
                message.properties.get(PROPERTY_MSG_REGION),
                self._group,
                begun.request_id,
                message.msg_id,
                message.reconsume_times,
                keys,
            )
            self._tell(record, _names((message.msg_id,), keys))
        return begun

    def consumed(self, begun: Consumption, *, success: bool, raised: bool) -> None:
        """The listener has returned."""
        now_ms = _now_ms()
        code = _CONSUMED if success else _RAISED if raised else _RETRIED
        took_ms = (now_ms - begun.started_ms) // len(begun.messages)
        for message in begun.messages:
            keys = message.properties.get(PROPERTY_KEYS)
            record = _record(
                "SubAfter",
                begun.request_id,
                message.msg_id,
                took_ms,
                success,
                keys,
                code,
                now_ms,
                self._group,
            )
            self._tell(record, _names((message.msg_id,), keys))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topic of the records, whose route is to be read again and again, once some were
        sent: a broker that is drained has to be left."""
        return (self._topic,) if self._turn else ()

    async def flush(self) -> None:
        """Send all that waits."""
        while self._waiting:
            records, keys = self._take()
            body = "".join(records).encode()
            try:
                queues = await self._session.routes.write_queues(
                    self._topic, self._options.default_topic, self._options.default_topic_queues
                )
                message = Message(self._topic, body, keys=tuple(keys))
                outgoing = self._sender.prepare(message)
                queue = self._next(queues)
                await self._sender.attempt(outgoing, queue, self._options.send_timeout_s)
            except ClientError as error:
                self.lost += len(records)
                log.warning("trace not sent records=%d error=%s", len(records), error)

    def _next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        self._turn += 1
        return queues[self._turn % len(queues)]

    def _tell(self, record: str, names: tuple[str, ...]) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            if not self.lost:
                log.warning("trace falls behind, records are lost topic=%s", self._topic)
            self.lost += 1
            return
        self._waiting.append((record, names))

    def _take(self) -> tuple[list[str], dict[str, None]]:
        """The oldest records that fit one message, and its keys."""
        records: list[str] = []
        keys: dict[str, None] = {}
        size = key_size = 0
        for record, names in self._waiting:
            size += len(record)
            key_size += sum(len(name) + 1 for name in names)
            if records and (size > _MOST_BYTES or key_size > _MOST_KEY_BYTES):
                break
            records.append(record)
            keys.update(dict.fromkeys(names))
        del self._waiting[: len(records)]
        return records, keys


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_on(properties: Mapping[str, str]) -> bool:
    return properties.get(PROPERTY_TRACE_ON) != "false"


def _type_of(properties: Mapping[str, str]) -> int:
    if properties.get(PROPERTY_TRANSACTION_PREPARED) == "true":
        return _HALF
    return _DELAYED if PROPERTY_DELAY in properties else _NORMAL


def _names(ids: Iterable[str], keys: str | None) -> tuple[str, ...]:
    return (*ids, *(key for key in (keys or "").split(KEY_SEPARATOR) if key))


def _record(*fields: str | int | bool | None) -> str:
    return _FIELD.join([_text(field) for field in fields]) + _RECORD


def _text(field: str | int | bool | None) -> str:
    if field is None:
        return _NONE
    if isinstance(field, bool):
        return "true" if field else "false"
    return str(field)
