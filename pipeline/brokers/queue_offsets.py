"""What the driver asks brokers about queues: their ends, offsets by time, a group's offsets.

A broker answers the message *nearest* to a time, or any of several with the same time
(protocol/WIRE.md 3.4). What Spark's users mean is the first message at or after it; that one is
searched from the broker's answer, by looking at single messages, with steps that double. Store
times within a queue ascend, as the broker's own search takes for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aerobee.pipeline.brokers.brokers import Brokers, Question
from aerobee.pipeline.brokers.errors import BadData
from aerobee.pipeline.brokers.offsets import Offsets, Queue
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import ProtocolError
from aerobee.protocol.frames.command import Command
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
from aerobee.protocol.message.record import decode_records

_FOUND_OR_NOT: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.QUERY_NOT_FOUND)})
_PULLED: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.PULL_OFFSET_MOVED),
    }
)


class Seen(NamedTuple):
    """A message that was looked at."""

    queue_offset: int
    store_ms: int
    size: int


def min_offsets(brokers: Brokers, queues: Sequence[Queue]) -> Offsets:
    """The oldest offset of each queue that can still be read."""
    return _ends(brokers, queues, RequestCode.GET_MIN_OFFSET)


def max_offsets(brokers: Brokers, queues: Sequence[Queue]) -> Offsets:
    """The offset that the next message of each queue will get; durable under SYNC_FLUSH."""
    return _ends(brokers, queues, RequestCode.GET_MAX_OFFSET)


def _ends(brokers: Brokers, queues: Sequence[Queue], code: RequestCode) -> Offsets:
    asked = [
        Question(queue, code, QueueHeader(queue.topic, queue.number).to_ext()) for queue in queues
    ]
    answers = brokers.ask_each(asked)
    return {queue: _offset(answer) for queue, answer in zip(queues, answers, strict=True)}


def offsets_at(brokers: Brokers, group: str, queues: Sequence[Queue], time_ms: int) -> Offsets:
    """The first message of each queue stored at or after a time; the queue's end if none is."""
    lowest, highest = min_offsets(brokers, queues), max_offsets(brokers, queues)
    asked = [
        Question(
            queue,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            SearchOffsetHeader(queue.topic, queue.number, time_ms).to_ext(),
        )
        for queue in queues
    ]
    found: Offsets = {}
    for queue, answer in zip(queues, brokers.ask_each(asked), strict=True):

        def is_late(offset: int, queue: Queue = queue) -> bool:
            seen = look(brokers, group, queue, offset, 1)
            return not seen or seen[0].store_ms >= time_ms

        found[queue] = first_late(lowest[queue], highest[queue], _offset(answer), is_late)
    return found


def first_late(low: int, high: int, hint: int, is_late: Callable[[int], bool]) -> int:
    """The first offset of [low, high) that is late, `high` if none is; all after it are late too.

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
    while low < high:
        middle = (low + high) // 2
        if is_late(middle):
            high = middle
        else:
            low = middle + 1
    return low


def look(brokers: Brokers, group: str, queue: Queue, offset: int, most: int) -> list[Seen]:
    """Up to `most` messages from an offset on, or from the first one that is left."""
    header = PullMessageHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.number,
        queue_offset=offset,
        max_msg_nums=most,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
    )
    while True:
        asked = Question(queue, RequestCode.PULL_MESSAGE, header.to_ext())
        answer = brokers.ask(asked, accept=_PULLED)
        try:
            if answer.code == ResponseCode.SUCCESS:
                return [
                    Seen(one.queue_offset, one.store_timestamp_ms, one.size)
                    for one in decode_records(answer.body)
                ]
            following = PullMessageResponse.from_ext(answer.ext).next_begin_offset
        except ProtocolError as error:
            raise BadData(f"{queue}: an answer cannot be read: {error}") from error
        if following <= header.queue_offset:
            return []
        header.queue_offset = following


def group_offsets(brokers: Brokers, group: str, queues: Sequence[Queue]) -> Offsets:
    """What a group has stored. A broker may answer 0 for a queue it has nothing of
    (WIRE.md 3.3)."""
    asked = [
        Question(
            queue,
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetHeader(group, queue.topic, queue.number).to_ext(),
        )
        for queue in queues
    ]
    answers = brokers.ask_each(asked, accept=_FOUND_OR_NOT)
    return {
        queue: _offset(answer)
        for queue, answer in zip(queues, answers, strict=True)
        if answer.code == ResponseCode.SUCCESS
    }


def store_group_offsets(brokers: Brokers, group: str, offsets: Mapping[Queue, int]) -> None:
    """Store offsets of a group; returns when the brokers have them.

    One of each broker and topic goes first: of a new group's a Java broker could lose others that
    come at the same time (`aerobee.client.queue_offsets.commit_offset`).
    """
    asked = {
        queue: Question(
            queue,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader(group, queue.topic, queue.number, offset).to_ext(),
        )
        for queue, offset in offsets.items()
    }
    first = {(queue.broker, queue.topic): queue for queue in asked}
    brokers.ask_each([asked.pop(queue) for queue in first.values()])
    brokers.ask_each(list(asked.values()))


def mean_sizes(
    brokers: Brokers, group: str, starts: Iterable[tuple[Queue, int]], most: int
) -> dict[Queue, float]:
    """The mean bytes of a stored message of each queue, judged by the next few of them."""
    sizes: dict[Queue, float] = {}
    for queue, offset in starts:
        seen = look(brokers, group, queue, offset, most)
        if seen:
            sizes[queue] = sum(one.size for one in seen) / len(seen)
    return sizes


def _offset(answer: Command) -> int:
    try:
        return OffsetResponse.from_ext(answer.ext).offset
    except ProtocolError as error:
        raise BadData(f"a broker's answer cannot be read: {error}") from error
