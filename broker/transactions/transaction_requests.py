"""END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323): protocol/WIRE.md 3.1, 3.6.

A decision names a half message by its two offsets and by its group. What becomes of it:

| the transaction is                   | commit                     | rollback                  |
|--------------------------------------|----------------------------|---------------------------|
| undecided, whichever copy is named   | delivered, 0               | forgotten, 0              |
| committed                            | 0, not delivered again     | refused                   |
| rolled back                          | refused                    | 0                         |
| put aside after too many checks      | delivered, 0               | 0                         |
| of a topic that was deleted since    | dropped, 17                | forgotten, 0              |
| decided, and nobody noted how        | 0, not delivered           | 0                         |
| not pending, and nothing is known    | refused                    | refused                   |

Most clients ask for no answer. An answer leaves when the decision is kept, or is 10 when that takes
too long, like that of a send. A producer that does not know yet (0) gets no answer at all, as in
RocketMQ.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator

from aerobee.access.control import AccessControl
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.messages.answers import AtOnce
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.topics import TopicTable
from aerobee.broker.transactions.forms import ASIDE, DECIDED, Half
from aerobee.broker.transactions.transaction_log import TransactionLog
from aerobee.broker.transactions.transaction_table import TransactionTable
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest, CorruptRecord
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.headers.transactions import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    EndTransactionHeader,
    ResumeCheckHalfMessageHeader,
)
from aerobee.protocol.message.ids import parse_offset_msg_id
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.connections.serving import Answer
from aerobee.remoting.turns import Steps
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.broker.transactions")

# How often a record is looked for that a transient pool has not written yet, and how long.
_LOOK_S = 0.005
_LOOKS = 200
# A message with this number of them is read in a step and stored again in the next; 0.2 us each,
# twice.
_MANY_PROPERTIES = 64

_WORDS = {COMMIT: "committed", ROLLBACK: "rolled back"}


class EndCounts:
    """Counts of the fates of decisions, for /metrics."""

    def __init__(self) -> None:
        self.committed = 0
        self.rolled_back = 0
        self.unknown = 0
        self.repeated = 0
        self.refused = 0

    def by_outcome(self) -> dict[str, int]:
        """The counts under their label values."""
        return {
            "committed": self.committed,
            "rolled_back": self.rolled_back,
            "unknown": self.unknown,
            "repeated": self.repeated,
            "refused": self.refused,
        }


class TransactionRequests:
    """Serves producers and administrators."""

    def __init__(
        self,
        store: MessageStore,
        table: TransactionTable,
        transactions: TransactionLog,
        topics: TopicTable,
        answers: AtOnce,
        appended: Callable[[], None],
        stats: BrokerStats,
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
        access: AccessControl | None,
    ) -> None:
        self._access = access
        self._store = store
        self._table = table
        self._log = transactions
        self._topics = topics
        self._answers = answers
        self._appended = appended
        self._stats = stats
        self._loop = loop
        self._clock_ms = clock_ms
        self.counts = EndCounts()

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    # --- END_TRANSACTION --------------------------------------------------------------------

    def end(self, connection: Connection, command: Command) -> Answer:
        """Carry out a decision. Raises `BadRequest` where there is nothing to decide."""
        try:
            header = EndTransactionHeader.from_ext(command.ext)
            if header.commit_or_rollback == UNKNOWN:
                self.counts.unknown += 1
                self._stats.request_served(command.code, 0.0)
                return None
            if self._is_kept_back(header.commit_log_offset):
                return self._when_readable(connection, command, header)
            return self._end(connection, command, header)
        except Exception:
            self.counts.refused += 1
            raise

    def _is_kept_back(self, log_offset: int) -> bool:
        """Whether a transient pool has the record, and will write it in a moment."""
        return self._store.committed <= log_offset < self._store.written

    def _when_readable(
        self, connection: Connection, command: Command, header: EndTransactionHeader
    ) -> Steps:
        """Go on when the record can be read."""
        for _ in range(_LOOKS):
            if not self._is_kept_back(header.commit_log_offset):
                break
            written: asyncio.Future[None] = self._loop.create_future()
            self._loop.call_later(_LOOK_S, written.set_result, None)
            yield written
        try:
            if self._access is not None:
                # Its topic could not be read before.
                self._access.check(command, connection.peer[0])
            answer = self._end(connection, command, header)
        except Exception:
            self.counts.refused += 1
            raise
        return (yield from answer) if isinstance(answer, Generator) else answer

    def _end(
        self, connection: Connection, command: Command, header: EndTransactionHeader
    ) -> Answer:
        half = self._half_of(header)
        if len(half.message.properties) < _MANY_PROPERTIES:
            return self._decide(connection, command, half, header.commit_or_rollback)
        return self._decide_next(connection, command, half, header.commit_or_rollback)

    def _decide_next(
        self, connection: Connection, command: Command, half: Half, decision: int
    ) -> Steps:
        """Decide in the next step: reading the message took long enough."""
        yield None
        try:
            return self._decide(connection, command, half, decision)
        except Exception:
            self.counts.refused += 1
            raise

    def _decide(
        self, connection: Connection, command: Command, half: Half, decision: int
    ) -> bytes | None:
        if self._answers.full and not command.is_oneway:
            raise self._answers.overload()
        pending_at = self._table.newest_of(half)
        if pending_at is None and self._is_done(half, decision):
            self.counts.repeated += 1
        elif decision == COMMIT:
            self._commit(half, pending_at)
            self.counts.committed += 1
        else:
            self._log.roll_back(half, pending_at)
            self.counts.rolled_back += 1
        self._appended()
        # One that was decided before may not be durable yet either.
        return self._answers.when_kept(
            connection, command, self._store.written, encode_success(command)
        )

    def _half_of(self, header: EndTransactionHeader) -> Half:
        """The half message that a decision names. Raises `BadRequest` if it is another one."""
        at = header.commit_log_offset
        try:
            half = self._log.read(at)
        except CorruptRecord as error:
            raise BadRequest.system_error(
                f"Find prepared transaction message failed: of the record at {at}, {error}"
            ) from None
        if half is None or not half.is_half:
            raise BadRequest.system_error(
                f"Find prepared transaction message failed: no half message begins at {at}; it is "
                "deleted, or another broker's"
            )
        if half.group != header.producer_group:
            raise BadRequest.system_error(
                f"The producer group wrong: the half message at {at} is of another group than "
                f"{header.producer_group[:255]}"
            )
        if half.message.queue_offset != header.tran_state_table_offset:
            raise BadRequest.system_error(
                "The transaction state table offset wrong: that of the half message at "
                f"{at} is {half.message.queue_offset}, not {header.tran_state_table_offset}"
            )
        return half

    def _is_done(self, half: Half, decision: int) -> bool:
        """Whether a transaction that is not pending was decided so. Raises `BadRequest` if it was
        decided otherwise, or nothing is known of it."""
        known = self._table.decision(half)
        if known is None:
            raise BadRequest.system_error(
                f"the half message at {half.message.log_offset} is not undecided any more, and how "
                "it was decided is not remembered; nothing was delivered now. If it stands in "
                "TRANS_CHECK_MAX_TIME_TOPIC, have it checked again by its id there "
                "(RESUME_CHECK_HALF_MESSAGE)"
            )
        if known == ASIDE:
            return False
        if known in (decision, DECIDED):
            return True
        raise BadRequest.system_error(
            f"the half message at {half.message.log_offset} was {_WORDS[known]} already, and "
            f"cannot be {_WORDS[decision]} now"
        )

    def _commit(self, half: Half, pending_at: int | None) -> None:
        """Deliver the message. Raises `BadRequest` where its topic is not there, or is another
        topic of that name."""
        if self._log.drop_if_deleted(half, pending_at):
            self._appended()
            raise _deleted(half, "it is dropped")
        if self._topics.get(half.topic) is None:
            raise BadRequest(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{half.topic}] not exist, though nobody deleted it here; the transaction "
                "stays undecided, create the topic and commit again",
            )
        self._log.commit(half, pending_at)

    # --- RESUME_CHECK_HALF_MESSAGE ----------------------------------------------------------

    def resume(self, _connection: Connection, command: Command) -> Steps:
        """Have a message that is undecided or was put aside checked from the beginning.

        Raises `BadRequest` for a decided message: it would be delivered twice.
        """
        msg_id = ResumeCheckHalfMessageHeader.from_ext(command.ext).msg_id or ""
        at = parse_offset_msg_id(msg_id)[2]
        try:
            half = self._log.read(at)
        except CorruptRecord as error:
            raise BadRequest.system_error(f"of the message with the id {msg_id}: {error}") from None
        if half is None:
            raise BadRequest.system_error(f"there is no message with the id {msg_id}")
        yield None
        pending_at = self._table.newest_of(half)
        known = self._table.decision(half)
        if pending_at is None and (known not in (None, ASIDE) or (known is None and half.is_half)):
            raise BadRequest.system_error(
                f"the message with the id {msg_id} is decided, or was put aside: what was put "
                "aside is resumed by its id in TRANS_CHECK_MAX_TIME_TOPIC"
            )
        if self._log.is_of_deleted(half):
            raise _deleted(half, "it is not checked again")
        self._log.copy(half, pending_at, 0, self._clock_ms())
        self._appended()
        log.info(
            "checks of a half message begin anew msg_id=%s topic=%s group=%s",
            msg_id, half.topic, half.group,
        )  # fmt: skip
        return encode_success(command)


def _deleted(half: Half, consequence: str) -> BadRequest:
    return BadRequest(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[{half.topic}] was deleted after the half message at {half.message.log_offset} was "
        f"stored: {consequence}, also if there is a topic of that name again",
    )
