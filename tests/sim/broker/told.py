"""The requests to a broker and its answers, by places of the disk's journal.

An `Event` is one request, or one save of a progress file: from `at` on it may have had an effect,
from `returned` on it was answered. The answer holds after a power cut if its records are durable,
which end at the log offset `end`. `Told` has the facts that all events amount to at a crash.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

NEVER = 1 << 62


class Event(NamedTuple):
    """`kind`: prepared (value: its half message's place), decided (what), timed (when it is to be
    delivered), recalled (the same), cursor (the timer's), progress (of the half and op queue)."""

    kind: str
    number: int
    value: object
    at: int
    returned: int
    end: int = 0


class Fact(NamedTuple):
    """The value of an event; if the event is `done`, the value has to hold."""

    value: object
    done: bool


@dataclass(slots=True)
class Told:
    """Facts by kind and number, in their order."""

    facts: dict[tuple[str, int], list[Fact]] = field(default_factory=lambda: defaultdict(list))

    def of(self, kind: str) -> dict[int, list[Fact]]:
        """All facts of a kind."""
        return {number: facts for (name, number), facts in self.facts.items() if name == kind}

    def last_done(self, kind: str) -> object | None:
        """The newest value of what has no number and has to hold."""
        done = [fact.value for fact in self.facts.get((kind, 0), []) if fact.done]
        return done[-1] if done else None


@dataclass(slots=True)
class BrokerLife:
    """One disk from its first state to its crash. `base` is what held before."""

    base: Told
    events: list[Event] = field(default_factory=list)
    # (place, log offset): from the place on, the log was known to be durable up to the offset.
    durable: list[tuple[int, int]] = field(default_factory=list)
    # (place, loop time): the latest time that may have been read by then.
    times: list[tuple[int, float]] = field(default_factory=list)

    def told(self, place: int, *, killed: bool) -> Told:
        """The facts that a crash at that place has to leave; `killed`: the disk lost nothing."""
        told = Told()
        for key, facts in self.base.facts.items():
            told.facts[key] += facts
        durable = max((end for at, end in self.durable if at <= place), default=0)
        for event in self.events:
            if event.at < place:
                done = event.returned <= place and (killed or event.end <= durable)
                told.facts[event.kind, event.number].append(Fact(event.value, done))
        return told

    def now_at(self, place: int) -> float:
        """No time behind this one had been read by then."""
        return min((now for at, now in self.times if at >= place), default=self.times[-1][1])

    def cut_at(self, place: int) -> BrokerLife:
        """The life up to that place. A request that had no answer by then never gets an answer."""
        return BrokerLife(
            self.base,
            [
                one if one.returned <= place else one._replace(returned=NEVER)
                for one in self.events
                if one.at < place
            ],
            [one for one in self.durable if one[0] <= place],
            [one for one in self.times if one[0] <= place] or self.times[:1],
        )
