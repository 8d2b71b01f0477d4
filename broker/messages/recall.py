"""RECALL_MESSAGE (370): a message that waits for a time of its own is not to be delivered
(protocol/WIRE.md 3.1, store/FORMAT.md 12.6).

The recall is stored, and answered like a send: when it is kept. Nobody looks whether the message is
there: what has that id, topic and time will not be delivered. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.delay.timer import TimerService
from aerobee.broker.messages.answers import AtOnce
from aerobee.broker.registration.broker_address import Identity
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.bodies.routes import PERM_WRITE
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.client import RecallMessageHeader
from aerobee.protocol.headers.send import SendReply
from aerobee.protocol.message.properties import (
    PROPERTY_TIMER_DEL_UNIQUE_KEY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQUE_KEY,
    encode_properties,
    index_keys,
)
from aerobee.protocol.message.recall import RecallHandle, decode_handle
from aerobee.protocol.message.record import StoreMessage
from aerobee.remoting.connections.connection import Connection

_BODY = b"-"


class RecallProcessor:
    """Stores recalls."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        timer: TimerService,
        topics: TopicTable,
        answers: AtOnce,
        reply: SendReply,
        appended: Callable[[], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._timer = timer
        self._topics = topics
        self._answers = answers
        self._reply = reply.encode
        self._appended = appended
        self._clock_ms = clock_ms

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, connection: Connection, command: Command) -> bytes | None:
        """Store the recall; None when its answer waits until it is kept. Raises BadRequest."""
        header = RecallMessageHeader.from_ext(command.ext)
        settings = self._settings
        if not settings.broker_permission & PERM_WRITE:
            raise BadRequest(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "recall refused: the broker's brokerPermission does not allow writing",
            )
        if self._answers.full:
            raise self._answers.overload()
        handle = self._handle(header)
        result = self._timer.put_at(self._record(connection, handle), handle.deliver_ms)
        self._appended()
        made = self._reply(command, 0, handle.unique_id, 0, result.queue_offset)
        return self._answers.when_kept(connection, command, result.end, made)

    def _handle(self, header: RecallMessageHeader) -> RecallHandle:
        """The handle of the message, if it can be recalled here and now. Raises BadRequest."""
        if self._topics.get(header.topic) is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"recall refused: the topic[{header.topic}] does not exist on this broker",
            )
        try:
            handle = decode_handle(header.recall_handle)
        except ValueError as error:
            raise _illegal(
                f"the recall handle is illegal, {error}; take it from the answer to the send"
            ) from error
        if handle.topic != header.topic:
            raise _illegal(
                f"the handle is of topic[{handle.topic}], the request of topic[{header.topic}]"
            )
        if handle.broker_name != self._settings.broker_name:
            raise _illegal(
                f"the handle is of broker[{handle.broker_name}], this is "
                f"{self._settings.broker_name}; ask the broker that has the message"
            )
        ahead_ms = handle.deliver_ms - self._clock_ms()
        if ahead_ms <= 0:
            raise _illegal("the message's time has come: it is delivered, or about to be")
        most_s = self._settings.timer_max_delay_seconds
        if ahead_ms > most_s * 1000:
            raise _illegal(
                f"its time is {ahead_ms // 1000} s ahead, no message waits for more than {most_s} "
                "s (timerMaxDelaySec)"
            )
        self._timer.check_room_for_recall(handle.deliver_ms)
        return handle

    def _record(self, connection: Connection, handle: RecallHandle) -> StoreMessage:
        properties = {
            PROPERTY_UNIQUE_KEY: handle.unique_id,
            PROPERTY_TIMER_DEL_UNIQUE_KEY: handle.unique_id,
            PROPERTY_TIMER_DELIVER_MS: str(handle.deliver_ms),
        }
        return StoreMessage(
            handle.topic,
            0,
            0,
            0,
            self._clock_ms(),
            connection.packed_peer,
            self._identity.store_host,
            0,
            0,
            _BODY,
            encode_properties(properties).encode(),
            0,
            index_keys(properties),
        )


def _illegal(reason: str) -> BadRequest:
    return BadRequest(ResponseCode.ILLEGAL_OPERATION, f"recall refused: {reason}")
