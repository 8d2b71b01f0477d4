"""A group as its brokers know it together: the numbers of `group list`, `describe` and `explain`,
and of `offset show`, are counted here.

A sum is not known if a part of it is not. The lag of a group whose members keep their offsets
themselves (broadcasting) is known to its members alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from aerobee.cli.printing.output import CANNOT_CONNECT, OK, say
from aerobee.client.administration.group_lag import BrokerView, GroupQuestions
from aerobee.protocol.bodies.clients import BROADCASTING
from aerobee.protocol.bodies.group_lag import GroupState, QueueLagState
from aerobee.protocol.names import retry_topic

OWN_OFFSETS: Final = (
    "its members keep their offsets themselves (broadcasting): how far each is, no broker knows"
)


class BrokerQueue(NamedTuple):
    """A group in a queue of a broker."""

    broker: str
    state: QueueLagState

    @property
    def name(self) -> str:
        """The queue's name for people."""
        return f"{self.state.topic}/{self.broker}/{self.state.queue_id}"


class GroupView:
    """A group, by the answers of the brokers that have answered."""

    def __init__(self, group: str, views: Mapping[str, BrokerView]) -> None:
        self.group = group
        self.views = dict(sorted(views.items()))
        #: The group at each broker, and its queues at all of them.
        self.states: dict[str, GroupState] = {
            name: view.lag.state for name, view in self.views.items()
        }
        self.queues = sorted(
            (
                BrokerQueue(name, queue)
                for name, view in self.views.items()
                for queue in view.lag.queues
            ),
            key=lambda one: (one.state.topic, one.broker, one.state.queue_id),
        )

    @property
    def brokers_of_rocketmq(self) -> list[str]:
        """The brokers that could not tell all of it."""
        return [name for name, view in self.views.items() if not view.is_full]

    @property
    def is_known(self) -> bool:
        """Whether some broker has the group, a member of it, or an offset of it."""
        return bool(self.queues) or any(one.settings or one.members for one in self.states.values())

    @property
    def members(self) -> int:
        """How many clients are online; a client is online at all brokers of its topics."""
        if all(len(one.clients) == one.members for one in self.states.values()):
            return len({name for one in self.states.values() for name in one.clients})
        return max(one.members for one in self.states.values())

    @property
    def is_broadcasting(self) -> bool:
        """Whether its members keep their offsets themselves."""
        return any(one.message_model == BROADCASTING for one in self.states.values())

    @property
    def topics(self) -> list[str]:
        """The topics that it has queues in, sorted."""
        return sorted({one.state.topic for one in self.queues})

    @property
    def subscribed(self) -> list[str]:
        """The topics that it has queues in, subscribes to, or has messages to try again in."""
        stated = {
            topic.topic
            for one in self.states.values()
            for topic in one.topics
            if topic.statements or topic.without
        }
        retries = {retry_topic(self.group)} if self.retries else set()
        return sorted({*self.topics, *stated, *retries})

    def expression(self, topic: str) -> str | None:
        """How its members subscribe to a topic; None while none does."""
        for state in self.states.values():
            for one in state.topics:
                if one.topic == topic and one.statements:
                    return " or ".join(statement.expression for statement in one.statements)
        return None

    def of(self, topic: str) -> list[BrokerQueue]:
        """Its queues in a topic."""
        return [one for one in self.queues if one.state.topic == topic]

    # --- numbers

    @property
    def retries(self) -> int | None:
        """Messages that wait for their next try, None where a broker does not tell."""
        return known_sum(one.retries for one in self.states.values())

    @property
    def dead(self) -> int | None:
        """Messages that it gave up on, None where a broker does not tell."""
        return known_sum(one.dead for one in self.states.values())

    def lag(self, topic: str | None = None) -> int | None:
        """Messages that it has before it, in a topic or in all; None where nobody knows. Without a
        member and without an offset nobody knows what it consumes."""
        if self.is_broadcasting or self.unknown_queues(topic):
            return None
        if not self.members and not self.subscribed:
            return None
        return self.lag_at_least(topic)

    def lag_at_least(self, topic: str | None = None) -> int:
        """That number without the queues of which nobody knows it."""
        queues = self.queues if topic is None else self.of(topic)
        waiting = (self.retries or 0) if topic in (None, retry_topic(self.group)) else 0
        return sum(one.state.lag or 0 for one in queues) + waiting

    def unknown_queues(self, topic: str | None = None) -> int:
        """The number of queues of which nobody knows how far the group is."""
        queues = self.queues if topic is None else self.of(topic)
        return sum(one.state.lag is None for one in queues)

    def given_out(self, topic: str | None = None) -> int | None:
        """Messages that members were given and have not consumed; None where nobody knows."""
        if self.is_broadcasting:
            return None
        queues = self.queues if topic is None else self.of(topic)
        return known_sum(one.state.given_out for one in queues)

    def stuck(self, topic: str | None = None) -> int | None:
        """The number of stuck queues, None where a broker does not tell."""
        if self.brokers_of_rocketmq:
            return None
        return len(self.stuck_queues(topic))

    def stuck_queues(self, topic: str | None = None) -> list[BrokerQueue]:
        """The queues whose offset stands though messages of them were given out."""
        queues = self.queues if topic is None else self.of(topic)
        return [one for one in queues if one.state.is_stuck]

    def holder(self, queue: BrokerQueue) -> str | None:
        """The member that has a queue: by its lock or by its waiting pull, or because it is the
        only one. None if that is not known."""
        state = self.states[queue.broker]
        only = state.clients[0] if state.members == 1 and state.clients else None
        return queue.state.lock_owner or queue.state.puller or only


def known_sum(numbers: Iterable[int | None]) -> int | None:
    """The sum, None if a number is not known."""
    found = list(numbers)
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


def number_text(number: int | None) -> int | str:
    """A number for people: `?` if nobody knows it."""
    return "?" if number is None else number


def lag_text(view: GroupView, topic: str | None = None) -> int | str:
    """A group's lag for people."""
    if view.is_broadcasting:
        return "broadcast"
    lag = view.lag(topic)
    if lag is not None:
        return lag
    return f"? (at least {least})" if (least := view.lag_at_least(topic)) else "?"


def retries_text(count: int) -> str:
    """The words for messages that a group gets again, and that are in none of its queues yet."""
    return f"{count} messages that it failed on wait for their next try"


def say_unanswered(questions: GroupQuestions) -> int:
    """Name the brokers that did not answer; returns the exit code of a command that has shown the
    rest."""
    for name, error in sorted(questions.unanswered.items()):
        say(f"{name} does not answer, so these numbers are without it: {error}")
    return CANNOT_CONNECT if questions.unanswered else OK
