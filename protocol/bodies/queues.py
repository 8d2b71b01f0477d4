"""Bodies about single queues: a group's time spans, corrected offsets, consume queue entries
(protocol/WIRE.md 4.7)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.frames.fastjson import dumps

#: Stands for a time that is not known.
UNKNOWN_TIME = -1


class TimeSpan(msgspec.Struct, frozen=True):
    """Store times of a queue in ms: its first and last message, the last one a group consumed; and
    for how long the next one has waited. -1 where there is no such message."""

    queue: MessageQueue
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int

    def encode(self, time_text: Callable[[int], str]) -> bytes:
        """Its part of the answer to QUERY_CONSUME_TIME_SPAN; `time_text` gives times for people."""
        return dumps(
            {
                "consumeTimeStamp": self.consumed_ms,
                "consumeTimeStampStr": time_text(self.consumed_ms),
                "delayTime": self.delay_ms,
                "maxTimeStamp": self.max_ms,
                "maxTimeStampStr": time_text(self.max_ms),
                "messageQueue": self.queue,
                "minTimeStamp": self.min_ms,
                "minTimeStampStr": time_text(self.min_ms),
            }
        )


def encode_time_spans(spans: Iterable[bytes]) -> bytes:
    """The answer to QUERY_CONSUME_TIME_SPAN, of the encoded spans."""
    return b'{"consumeTimeSpanSet":[%b]}' % b",".join(spans)


def encode_correction_offsets(offsets: Iterable[tuple[int, int]]) -> bytes:
    """The answer to QUERY_CORRECTION_OFFSET: offsets by queue id."""
    texts = [b'"%d":%d' % pair for pair in offsets]
    return b'{"correctionOffsets":{%b}}' % b",".join(texts)


class QueueData(msgspec.Struct, frozen=True):
    """A consume queue entry for people. The last four belong to one with an extension."""

    log_offset: int
    size: int
    tags_code: int
    is_match: bool = False
    extension: str | None = None
    bit_map: str | None = None
    remark: str | None = None

    def json_members(self) -> Mapping[str, Any]:
        """Its form in the answer to QUERY_CONSUME_QUEUE."""
        return {
            "bitMap": self.bit_map,
            "eval": self.is_match,
            "extendDataJson": self.extension,
            "msg": self.remark,
            "physicOffset": self.log_offset,
            "physicSize": self.size,
            "tagsCode": self.tags_code,
        }


def encode_consume_queue(
    min_offset: int,
    max_offset: int,
    entries: Iterable[bytes],
    subscription: Mapping[str, Any] | None,
    filter_text: str | None,
) -> bytes:
    """The answer to QUERY_CONSUME_QUEUE, of the encoded entries."""
    rest: dict[str, Any] = {
        "filterData": filter_text,
        "maxQueueIndex": max_offset,
        "minQueueIndex": min_offset,
        "subscriptionData": subscription,
    }
    return b'%b,"queueData":[%b]}' % (dumps(rest)[:-1], b",".join(entries))
