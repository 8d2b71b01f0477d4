"""Multi-dispatch: one record, found through several consume queues (store/FORMAT.md 2.8).

A message whose property `INNER_MULTI_DISPATCH` lists queue names, separated by commas, gets an
entry in each of those queues besides its own. The append writes their queue offsets, in the same
order, into the record (`INNER_MULTI_QUEUE_OFFSET`), so that the queues can always be made again
from the log: `MultiDispatchLog` writes them, `derived.py` reads them back, `slots.py` decides
whether a record names an entry back. With light queues on, names that begin with `%LMQ%` have queue
id 0, others the message's own.

Not multi-dispatched, although the reference of 4.9 does it: retries and dead letters, whose
original was dispatched already, and messages that wait for their delay or commit and will be put
again when it comes (5.x leaves most of these out, too). Messages of a batch keep the property and
are dispatched to their own queue only, as in the reference.

Names come from clients and become directories: a message with a name that cannot be a directory, or
of a system topic, is refused.
"""

from collections.abc import Sequence

import msgspec

from aerobee.protocol.message.properties import (
    LIST_SEPARATOR,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_WAIT,
    decode_properties,
    split_list,
)
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_PREPARED
from aerobee.protocol.names import DLQ_PREFIX, NO_SEND_TOPICS, RETRY_PREFIX
from aerobee.store.errors import MessageIllegal, StoreError
from aerobee.store.log.commit_log import Appended, CommitLog
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.queues.slots import OFFSETS_MARK
from aerobee.store.segments.results import PutResult

_MARK = PROPERTY_MULTI_DISPATCH.encode() + b"\x01"
_REPLACED = (OFFSETS_MARK, PROPERTY_WAIT.encode() + b"\x01")


class MultiDispatchLog(CommitLog):
    """A commit log that numbers messages in further queues as well."""

    def put(self, message: StoreMessage) -> PutResult:
        """Do CommitLog.put; a name that cannot be a queue's refuses the message."""
        if _MARK in message.properties and _is_dispatched(message):
            try:
                others = self._others(message)
            except StoreError as error:
                raise self._counted(error) from None
            # The numbers may have a digit more under the lock.
            numbered = _numbered(message, [queue.next_offset * 10 + 9 for queue in others])
            self._check_sizes(numbered)
        return super().put(message)

    def _append(
        self, messages: Sequence[StoreMessage], queue: ConsumeQueue, now_ms: int
    ) -> list[Appended]:
        (message,) = messages
        if _MARK not in message.properties or not _is_dispatched(message):
            return super()._append(messages, queue, now_ms)
        others = self._others(message)
        message = _numbered(message, [other.next_offset for other in others])
        entries = super()._append((message,), queue, now_ms)
        _, _, log_offset, size, tags_code, _, store_ms, _ = entries[0]
        for other in dict.fromkeys(others):
            if other is not queue:
                if self.feeding:
                    self.pending.append(
                        (other, other.next_offset, log_offset, size, tags_code, (), store_ms,
                         other.topic)
                    )  # fmt: skip
                other.next_offset += 1
        return entries

    def _others(self, message: StoreMessage) -> list[ConsumeQueue]:
        """The queues that a message lists, repeated ones too. Raises StoreError."""
        names = decode_properties(message.properties).get(PROPERTY_MULTI_DISPATCH, "")
        queues = self._queues
        return [
            queues.admit(_check_name(name), queues.listed_id(name, message.queue_id))
            for name in split_list(names)
        ]


def _is_dispatched(message: StoreMessage) -> bool:
    topic = message.topic
    return not (
        topic in NO_SEND_TOPICS
        or message.sys_flag & SYS_TRANSACTION_PREPARED
        or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    )


def _check_name(name: str) -> str:
    if not name.strip() or not name.isprintable() or name in NO_SEND_TOPICS:
        raise MessageIllegal(
            f"{PROPERTY_MULTI_DISPATCH} lists {name!r}, which is no queue that messages may be "
            "dispatched to"
        )
    return name


def _numbered(message: StoreMessage, queue_offsets: list[int]) -> StoreMessage:
    """The message with the offsets in its properties, and without the properties that the broker
    keeps."""
    kept = [
        entry
        for entry in message.properties.split(b"\x02")
        if entry and not entry.startswith(_REPLACED)
    ]
    numbers = LIST_SEPARATOR.join(map(str, queue_offsets))
    kept.append(OFFSETS_MARK + numbers.encode())
    return msgspec.structs.replace(message, properties=b"\x02".join(kept))
