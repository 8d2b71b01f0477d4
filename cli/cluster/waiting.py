"""How commands that delete a topic or make it smaller tell of messages that wait for it."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from aerobee.client.admin import Admin
from aerobee.protocol.bodies.waiting import WaitingMessages

_WORDS: Final = {
    "delayed": "delayed",
    "timed": "with a time of their own",
    "half": "in transactions",
    "staged": "in staged batches",
}


class Waiting(NamedTuple):
    """Messages that were accepted and are not in their queues yet, by what they wait for.
    `unlooked` more records wait, of which nobody knows for which topic; `silent` are the brokers
    that do not tell."""

    counts: Mapping[str, int]
    unlooked: int
    silent: tuple[str, ...]

    @property
    def total(self) -> int:
        """All that is known."""
        return sum(self.counts.values())

    @property
    def is_none(self) -> bool:
        """Whether it is known that nothing waits."""
        return not (self.total or self.unlooked or self.silent)

    def text(self, consequence: str) -> str:
        """A sentence, empty when nothing waits; `consequence` says what becomes of them."""
        parts = []
        if self.total or self.unlooked:
            kinds = ", ".join(
                f"{count} {_WORDS.get(kind, kind)}" for kind, count in self.counts.items() if count
            )
            least = "at least " if self.unlooked else ""
            named = f" ({kinds})" if kinds else ""
            one = self.total == 1
            messages = "1 message that waits" if one else f"{self.total} messages that wait"
            parts.append(f"{least}{messages}{named} {consequence}")
        if self.unlooked:
            parts.append(f"{self.unlooked} more records wait and were not looked at")
        if self.silent:
            names = ", ".join(self.silent)
            parts.append(
                f"what waits on {names} is not known: RocketMQ's brokers do not tell, and ours "
                "tell administrators alone"
            )
        return "; ".join(parts)


async def waiting_for(admin: Admin, topic: str, first_queues: Mapping[str, int]) -> Waiting:
    """What waits for a topic on the brokers named, for their queues from those numbers on."""
    found = await admin.waiting_messages(topic, first_queues)
    told = {name: found.get(name) for name in first_queues}
    return Waiting(
        _by_kind((one, first_queues[name]) for name, one in told.items() if one is not None),
        sum(one.unlooked for one in told.values() if one is not None),
        tuple(sorted(name for name, one in told.items() if one is None)),
    )


def _by_kind(found: Iterable[tuple[WaitingMessages, int]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one, first_queue in found:
        for kind, queues in one.counts.items():
            more = sum(count for queue_id, count in queues.items() if queue_id >= first_queue)
            counts[kind] = counts.get(kind, 0) + more
    return counts
