"""The answer to WAITING_MESSAGES (31010): what waits for a topic (protocol/WIRE.md 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aerobee.protocol.bodies.common import parse_body
from aerobee.protocol.frames.fastjson import dumps


class WaitingMessages(msgspec.Struct, frozen=True):
    """Messages that were accepted for a topic and are not in its queues yet, by what they wait for
    (delayed, timed, half, staged) and by the queue that they were accepted for. `unlooked` waiting
    records were not looked at, which may be for the topic or not."""

    counts: Mapping[str, Mapping[int, int]]
    unlooked: int = 0

    def total(self, first_queue: int = 0) -> int:
        """How many there are for the queues from that one on."""
        return sum(
            count
            for queues in self.counts.values()
            for queue_id, count in queues.items()
            if queue_id >= first_queue
        )

    def encode(self) -> bytes:
        """The body of the answer."""
        counts = {
            kind: {str(queue_id): count for queue_id, count in sorted(queues.items())}
            for kind, queues in self.counts.items()
        }
        return dumps({"unlooked": self.unlooked, "waiting": counts})

    @classmethod
    def parse(cls, body: bytes) -> WaitingMessages:
        """Raises ValueError for a body that is no such answer."""
        try:
            value: Mapping[str, Any] = parse_body(body, "answer about waiting messages")
            counts = {
                str(kind): {int(queue_id): int(count) for queue_id, count in queues.items()}
                for kind, queues in value["waiting"].items()
            }
            return cls(counts, int(value["unlooked"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"the answer about waiting messages cannot be read: {error!r}"
            ) from error
