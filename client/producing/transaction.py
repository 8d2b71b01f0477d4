"""A producer of transactions: consumers get a message if something else was done, and only then.

    class Payments:
        async def execute(self, message: Message, msg_id: str) -> Decision: ...
        async def check(self, message: ReceivedMessage) -> Decision: ...

    async with TransactionProducer("127.0.0.1:9876", "payments", Payments()) as producer:
        result = await producer.send_in_transaction(Message("paid", b"order 17"))

The broker stores the message where no consumer sees it; then `execute` does the local transaction
and says how it went. `COMMIT` gives the message to consumers, `ROLLBACK` to nobody. If the broker
does not learn that, because `execute` said `UNKNOWN` or raised, or this program died, it asks a
live producer of the same group: `check` looks up what became of the local transaction, by what
`execute` wrote down (the message's `msg_id` is the same in both). Any program of the group may be
asked about any message of it, so they have to share what they look it up in.

Listeners are coroutine functions, which run on the loop, or plain ones, which run in threads.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Collection
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

from aerobee.client.connections.background import PlainCalls
from aerobee.client.errors import BadMessage, CallerError, ClientError, NoRoute
from aerobee.client.message import Message, ReceivedMessage, received
from aerobee.client.options import Addresses, TransactionOptions, checked_options
from aerobee.client.producing.producer import Producer, Selector
from aerobee.client.producing.sender import SendResult, SendStatus
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.transactions import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    CheckTransactionStateHeader,
    EndTransactionHeader,
)
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.protocol.message.properties import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
)
from aerobee.protocol.message.record import decode_record
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED

log = logging.getLogger(__name__)

_HALF: Final = {PROPERTY_TRANSACTION_PREPARED: "true"}


class Decision(enum.Enum):
    """The outcome of a local transaction."""

    COMMIT = COMMIT
    ROLLBACK = ROLLBACK
    #: It has not ended, or nobody knows now: the broker asks later.
    UNKNOWN = UNKNOWN


class TransactionListener(Protocol):
    """The program's side of its transactions; methods may be coroutine functions."""

    def execute(self, message: Message, msg_id: str) -> Decision | Awaitable[Decision]:
        """Do the local transaction that belongs to a message; `msg_id` is its unique id."""

    def check(self, message: ReceivedMessage) -> Decision | Awaitable[Decision]:
        """Say how the local transaction ended that belongs to a message."""


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """The end of a transaction.

    `confirmed`: the broker has said that the decision is stored. Otherwise it will ask.
    """

    sent: SendResult
    decision: Decision
    confirmed: bool


class TransactionProducer(Producer):
    """A producer whose messages may depend on local transactions; one per program is enough."""

    def __init__(
        self,
        name_servers: Addresses,
        group: str,
        listener: TransactionListener,
        options: TransactionOptions | None = None,
        *,
        topics: Collection[str] = (),
    ) -> None:
        """The brokers of `topics`, besides those with `options.default_topic`, may ask before this
        program sends its first message: for brokers that make no topics by themselves."""
        _check_listener(listener)
        self._transaction_options = checked_options(options, TransactionOptions)
        super().__init__(name_servers, group, self._transaction_options)
        self._listener = listener
        self._asked_for = (*topics, self._transaction_options.default_topic)
        self._checks = asyncio.Semaphore(self._transaction_options.check_concurrency)
        self._waiting_checks = 0
        self._session.serve(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)
        self._threads = PlainCalls(
            self._transaction_options.check_concurrency, "aerobee-transaction"
        )

    async def __aenter__(self) -> Self:
        self.start()
        # Brokers ask whom they know from heartbeats, which go to those of known routes.
        for topic in self._asked_for:
            try:
                await self._session.routes.route(topic)
            except ClientError as error:
                level = logging.INFO if isinstance(error, NoRoute) else logging.WARNING
                log.log(level, "brokers of a topic are not known yet topic=%s %s", topic, error)
            self._topics.add(topic)
        await self._session.heartbeat()
        return self

    async def close(self) -> None:
        """Close the connections; checks at work are given up, and the broker asks again."""
        await super().close()
        self._threads.close()

    # Sending

    async def send_in_transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Store a message, have the listener's `execute` do the local transaction, and tell the
        broker how it ended.

        The choices are those of `send`. If the message was not stored, it raises as `send` does,
        and nothing was executed. An exception of `execute` is raised here: the transaction stays
        undecided. A message that is stored and not surely on the disk (any status but OK) is rolled
        back, and nothing is executed.
        """
        self._session.check_running()
        if message.delay_level:
            raise BadMessage("a transactional message cannot have a delay level")
        own = {**message.properties, **_HALF, PROPERTY_PRODUCER_GROUP: self.group}
        outgoing = self._sender.prepare(replace(message, properties=own))
        outgoing.sys_flag |= SYS_TRANSACTION_PREPARED
        sent = await self._send(outgoing, message, queue, key, selector, timeout_s)
        decision = Decision.ROLLBACK
        if sent.status is SendStatus.OK:
            decision = _checked(
                await self._threads.call(self._listener.execute, message, sent.msg_id)
            )
        address = self._session.master(sent.queue.broker_name)
        header = EndTransactionHeader(
            self.group,
            sent.queue_offset,
            parse_offset_msg_id(sent.offset_msg_id)[2],
            decision.value,
            False,
            sent.msg_id,
            sent.msg_id,
        )
        confirmed = await self._end(address, header)
        return TransactionResult(sent, decision, confirmed)

    async def _end(self, address: str, header: EndTransactionHeader) -> bool:
        """Send the broker a decision; returns whether it has stored it. An unknown decision is not
        sent."""
        if header.commit_or_rollback == UNKNOWN:
            return False
        try:
            await self._session.call(address, RequestCode.END_TRANSACTION, header.to_ext())
        except ClientError as error:
            log.warning(
                "decision not confirmed, the broker will ask msg_id=%s address=%s error=%s",
                header.msg_id, address, error,
            )  # fmt: skip
            return False
        return True

    # Requests of brokers

    async def _on_check(self, address: str, command: Command) -> None:
        most = self._transaction_options.checks_waiting
        if self._waiting_checks >= most:
            log.warning("check dropped, %d wait; the broker will ask again", most)
            return
        self._waiting_checks += 1
        try:
            async with self._checks:
                await self._check(address, command)
        finally:
            self._waiting_checks -= 1

    async def _check(self, address: str, command: Command) -> None:
        try:
            asked = CheckTransactionStateHeader.from_ext(command.ext)
            stored = decode_record(command.body)
        except (BadRequest, CorruptRecord) as error:
            log.error("check cannot be read address=%s error=%s", address, error)
            return
        if stored.properties.get(PROPERTY_PRODUCER_GROUP) != self.group:
            log.warning("check is for another group address=%s", address)
            return
        message = received(stored, self._broker_name(address))
        decision = _checked(await self._threads.call(self._listener.check, message))
        header = EndTransactionHeader(
            self.group,
            asked.tran_state_table_offset,
            asked.commit_log_offset,
            decision.value,
            True,
            message.msg_id,
            asked.transaction_id,
        )
        await self._end(address, header)

    def _broker_name(self, address: str) -> str:
        """The name of the broker that asks, "" for one of an unknown address."""
        for name, broker in self._session.routes.brokers().items():
            if address in broker.addresses.values():
                return name
        return ""


def _check_listener(listener: object) -> None:
    for name in ("execute", "check"):
        if not callable(getattr(listener, name, None)):
            raise CallerError(
                f"a transaction listener needs the methods execute and check; "
                f"{type(listener).__name__} has no {name}"
            )


def _checked(decision: object) -> Decision:
    """The listener's decision; anything else is a mistake in the program, and decides nothing."""
    if isinstance(decision, Decision):
        return decision
    log.error("a transaction listener must return a Decision, got %r", decision)
    return Decision.UNKNOWN
