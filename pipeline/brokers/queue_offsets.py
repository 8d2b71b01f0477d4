"""The driver's questions to brokers about queues: their ends, offsets by time, a group's offsets.

A broker answers the message *nearest* to a time, or any of several with the same time
(protocol/WIRE.md 3.4). Spark's users mean the first message at or after it; this message is
searched from the broker's answer on, by looking at single messages, with steps that double. Store
times within a queue ascend, as the broker's own search takes for granted.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aerobee.pipeline.brokers.brokers import Brokers, QueueRequest
from aerobee.pipeline.brokers.offsets import Mark, Offsets, Queue
from aerobee.pipeline.errors import BadData
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import ProtocolError
from aerobee.protocol.headers.client import (
    PULL_SUBSCRIPTION,
    OffsetResponse,
    PullMessageHeader,
    PullMessageResponse,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from aerobee.protocol.headers.fields import Header
from aerobee.protocol.message.record import Message, decode_records

log = logging.getLogger("aerobee.pipeline")

_FOUND: Final = frozenset({int(ResponseCode.SUCCESS)})
_FOUND_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
#: Answers to a pull that say where to go on.
PULL_CODES: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.PULL_OFFSET_MOVED),
    }
)


class PeekedMessage(NamedTuple):
    """A message that was looked at."""

    queue_offset: int
    store_ms: int
    size: int
    log_offset: int


def min_offsets(brokers: Brokers, queues: Sequence[Queue]) -> Offsets:
    """The oldest offset of each queue that can still be read."""
    return _ends(brokers, queues, RequestCode.GET_MIN_OFFSET)


def max_offsets(brokers: Brokers, queues: Sequence[Queue]) -> Offsets:
    """The offset that the next message of each queue will get; durable under SYNC_FLUSH."""
    return _ends(brokers, queues, RequestCode.GET_MAX_OFFSET)


def _ends(brokers: Brokers, queues: Sequence[Queue], code: RequestCode) -> Offsets:
    return _answers(brokers, queues, code, lambda one: QueueHeader(one.topic, one.number))


def _answers(
    brokers: Brokers,
    queues: Sequence[Queue],
    code: RequestCode,
    header_of: Callable[[Queue], Header],
    accept: Collection[int] = _FOUND,
) -> Offsets:
    """The offsets in the answers to one request for each queue; those that are not found lack."""
    requests = [QueueRequest(queue, code, header_of(queue).to_ext()) for queue in queues]
    answers = brokers.call_each(requests, accept)
    try:
        return {
            queue: OffsetResponse.from_ext(answer.ext).offset
            for queue, answer in zip(queues, answers, strict=True)
            if answer.code == ResponseCode.SUCCESS
        }
    except ProtocolError as error:
        raise BadData(f"a broker's answer cannot be read: {error}") from error


def offsets_at(brokers: Brokers, group: str, queues: Sequence[Queue], time_ms: int) -> Offsets:
    """The first message of each queue stored at or after a time; without such a message the queue's
    end."""
    lowest, highest = min_offsets(brokers, queues), max_offsets(brokers, queues)
    nearest = _answers(
        brokers,
        queues,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        lambda one: SearchOffsetHeader(one.topic, one.number, time_ms),
    )
    found: Offsets = {}
    for queue in queues:

        def is_late(offset: int, queue: Queue = queue) -> bool:
            seen = peek(brokers, group, queue, offset, 1)
            return not seen or seen[0].store_ms >= time_ms

        found[queue] = first_late(lowest[queue], highest[queue], nearest[queue], is_late)
    return found


def first_late(low: int, high: int, hint: int, is_late: Callable[[int], bool]) -> int:
    """The first offset of [low, high) that is late, else `high`; all after it are late too.

    The search starts at the hint and doubles its steps, so a good hint costs two looks.
    """
    if low >= high:
        return max(low, high)
    hint = min(max(hint, low), high - 1)
    step = 1
    # All below `low` is early; `high` is late, or the end.
    if is_late(hint):
        high = hint
        while low < high:
            probe = max(low, high - step)
            if not is_late(probe):
                low = probe + 1
                break
            high, step = probe, 2 * step
    else:
        low = hint + 1
        while low < high:
            probe = min(high - 1, low + step - 1)
            if is_late(probe):
                high = probe
                break
            low, step = probe + 1, 2 * step
    return low + bisect_left(range(low, high), True, key=is_late)


def peek(brokers: Brokers, group: str, queue: Queue, offset: int, most: int) -> list[PeekedMessage]:
    """Up to `most` messages from an offset on, or from the first offset that is left."""
    while True:
        ext = pull_header(group, queue, offset, most).to_ext()
        answer = brokers.call(QueueRequest(queue, RequestCode.PULL_MESSAGE, ext), accept=PULL_CODES)
        try:
            if answer.code == ResponseCode.SUCCESS:
                return [_peeked(one) for one in decode_records(answer.body)]
            following = PullMessageResponse.from_ext(answer.ext).next_begin_offset
        except ProtocolError as error:
            raise BadData(f"{queue}: an answer cannot be read: {error}") from error
        if following <= offset:
            return []
        offset = following


def messages_at(brokers: Brokers, group: str, places: Offsets) -> dict[Queue, Mark | None]:
    """The message at one offset of each queue; None where the queue ends before it. A queue whose
    message was removed, or cannot be read, lacks."""
    found: dict[Queue, Mark | None] = {}
    requests = [
        QueueRequest(queue, RequestCode.PULL_MESSAGE, pull_header(group, queue, at, 1).to_ext())
        for queue, at in places.items()
    ]
    answers = brokers.call_each(requests, accept=PULL_CODES)
    for (queue, at), answer in zip(places.items(), answers, strict=True):
        try:
            if answer.code == ResponseCode.SUCCESS:
                seen = _peeked(decode_records(answer.body)[0])
                if seen.queue_offset == at:
                    found[queue] = Mark(seen.log_offset, seen.store_ms)
            elif PullMessageResponse.from_ext(answer.ext).next_begin_offset <= at:
                found[queue] = None
        except (ProtocolError, IndexError) as error:
            log.warning("%s: the message at offset %d cannot be read: %s", queue, at, error)
    return found


def pull_header(
    group: str, queue: Queue, offset: int, most: int, subscription: str = "*"
) -> PullMessageHeader:
    """A pull of up to `most` messages that the broker answers at once; no offset is committed."""
    return PullMessageHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.number,
        queue_offset=offset,
        max_msg_nums=most,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=subscription,
    )


def group_offsets(brokers: Brokers, group: str, queues: Sequence[Queue]) -> Offsets:
    """The offsets that a group has stored. A broker may answer 0 for a queue without an offset
    (WIRE.md 3.3)."""
    return _answers(
        brokers,
        queues,
        RequestCode.QUERY_CONSUMER_OFFSET,
        lambda one: QueryConsumerOffsetHeader(group, one.topic, one.number),
        _FOUND_OR_NOT,
    )


def store_group_offsets(brokers: Brokers, group: str, offsets: Mapping[Queue, int]) -> None:
    """Store offsets of a group; returns when the brokers have them.

    One of each broker and topic goes first: of a new group's a Java broker could lose others that
    come at the same time (`aerobee.client.queue_offsets.commit_offset`).
    """
    asked = {
        queue: QueueRequest(
            queue,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader(group, queue.topic, queue.number, offset).to_ext(),
        )
        for queue, offset in offsets.items()
    }
    first = {(queue.broker, queue.topic): queue for queue in asked}
    brokers.call_each([asked.pop(queue) for queue in first.values()])
    brokers.call_each(list(asked.values()))


def _peeked(one: Message) -> PeekedMessage:
    return PeekedMessage(one.queue_offset, one.store_timestamp_ms, one.size, one.log_offset)


def mean_sizes(
    brokers: Brokers, group: str, starts: Iterable[tuple[Queue, int]], most: int
) -> dict[Queue, float]:
    """The mean bytes of a stored message of each queue, judged by the next few of them."""
    sizes: dict[Queue, float] = {}
    for queue, offset in starts:
        seen = peek(brokers, group, queue, offset, most)
        if seen:
            sizes[queue] = sum(one.size for one in seen) / len(seen)
    return sizes
