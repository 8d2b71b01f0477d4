"""The subscriptions of a consumer group, as each of its members states them.

A member's newest heartbeat replaces what that member said before. RocketMQ goes by a version
instead, the milliseconds of the client's clock, and takes the highest: the new expression of a host
whose clock is behind is ignored, and messages are passed over. The order in which heartbeats come
is known without any clock.

Members may differ for a while, when programs are replaced one after the other. The group has every
topic that a member states, and a pull is judged by the statement of its own member; a pull from a
client that is no member is judged by the last statement. A topic that no member states any more is
gone.

A version says one thing still: a pull that carries a higher one than was heard is sent before the
heartbeat that says what it wants (SUBSCRIPTION_NOT_LATEST). So each statement keeps the highest
version that it came with.

Members that state the same share one entry, found by the text of the expression. Loop thread only.
The objects are of types that the collector of garbage need not look at (`clients.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aerobee.broker.tables.client_sizes import subscription_bytes
from aerobee.protocol.filters.property_filter import TAG_TYPE
from aerobee.protocol.filters.subscription import Subscription


class _Statement(msgspec.Struct, gc=False):
    """The statement that `members` members make about a topic."""

    subscription: Subscription
    members: int
    #: Bytes of the subscription.
    bytes: int


class _Topic(msgspec.Struct, gc=False):
    """The statements of one topic by their texts; the one stated last is the last."""

    by_text: dict[str, _Statement] = {}


class Statements(msgspec.Struct, gc=False):
    """The subscriptions of a group's members."""

    #: By topic, what was stated last. Another object as soon as anything changed.
    in_force: dict[str, Subscription] = {}
    topics: dict[str, _Topic] = {}
    #: Bytes of all statements.
    bytes: int = 0

    def is_mixed(self, topic: str) -> bool:
        """Whether members say different things of a topic."""
        found = self.topics.get(topic)
        return found is not None and len(found.by_text) > 1

    def of(self, topic: str, text: str) -> Subscription | None:
        """The subscription of the members who state that text."""
        statement = self._statement(topic, text)
        return statement.subscription if statement is not None else None

    def _statement(self, topic: str, text: str) -> _Statement | None:
        found = self.topics.get(topic)
        return found.by_text.get(text) if found is not None else None

    def restate(
        self,
        before: Mapping[str, str],
        now: Mapping[str, str],
        stated: Mapping[str, Subscription],
        sizes: Mapping[str, int],
    ) -> bool:
        """A member that stated the texts `before` states those of `now`, which are those of
        `stated`, or leaves with nothing; True when a topic came to the group or went. `sizes` by
        topic are those that `growth` has found, which takes as long: many tags are many texts."""
        came = gone = False
        for topic, text in now.items():
            one, was = stated[topic], before.get(topic)
            if was == text:
                self._again(topic, text, one)
                continue
            came |= topic not in self.topics
            self._state(text, one, sizes.get(topic) or subscription_bytes(one))
            if was is not None:
                self._withdraw(topic, was)
        for topic in before.keys() - now.keys():
            gone |= self._withdraw(topic, before[topic])
        return came or gone

    def growth(
        self,
        before: Mapping[str, str],
        now: Mapping[str, str],
        stated: Mapping[str, Subscription],
        sizes: dict[str, int],
    ) -> int:
        """How many bytes more `restate` would take; into `sizes` those of each new statement."""
        grown = 0
        for topic, text in now.items():
            one, was = stated[topic], before.get(topic)
            known = self._statement(topic, text)
            if known is None:
                sizes[topic] = subscription_bytes(one)
                grown += sizes[topic]
            elif known.subscription.codes != one.codes:
                grown += subscription_bytes(one) - known.bytes
            if was is not None and was != text:
                grown -= self._freed(topic, was)
        if before.keys() - now.keys():
            gone = (topic for topic in before if topic not in now)
            grown -= sum(self._freed(topic, before[topic]) for topic in gone)
        return grown

    def _freed(self, topic: str, text: str) -> int:
        statement = self.topics[topic].by_text[text]
        return statement.bytes if statement.members == 1 else 0

    def _again(self, topic: str, text: str, one: Subscription) -> None:
        """A member says what it said. The object stays as long as that changes nothing."""
        statement = self.topics[topic].by_text[text]
        known = statement.subscription
        if one.version <= known.version and one.codes == known.codes:
            return
        newer = _with_version(one, max(one.version, known.version))
        statement.subscription = newer
        if one.codes != known.codes:
            self.bytes -= statement.bytes
            statement.bytes = subscription_bytes(newer)
            self.bytes += statement.bytes
        if self.in_force[topic] is known:
            self.in_force[topic] = newer

    def _state(self, text: str, one: Subscription, size: int) -> None:
        """A member says something new of a topic, or has come with it."""
        topic = one.topic
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = _Topic()
        known = found.by_text.get(text)
        if known is not None and len(found.by_text) == 1:
            known.members += 1
            self._again(topic, text, one)
            return
        newest = one
        if known is not None:
            del found.by_text[text]
            self.bytes -= known.bytes
            newest = _with_version(one, max(one.version, known.subscription.version))
        found.by_text[text] = _Statement(newest, 1 + (known.members if known else 0), size)
        self.bytes += size
        self.in_force[topic] = newest

    def _withdraw(self, topic: str, text: str) -> bool:
        """A member does not say that any more; True when the topic went with it."""
        found = self.topics[topic]
        statement = found.by_text[text]
        statement.members -= 1
        if statement.members:
            return False
        del found.by_text[text]
        self.bytes -= statement.bytes
        if not found.by_text:
            del self.topics[topic]
            del self.in_force[topic]
            return True
        if self.in_force[topic] is statement.subscription:
            last = found.by_text[next(reversed(found.by_text))]
            # Another object: whoever kept the one before would not see that members differed.
            last.subscription = msgspec.structs.replace(last.subscription)
            self.in_force[topic] = last.subscription
        return False


def stated_by(subscriptions: tuple[Subscription, ...]) -> dict[str, Subscription]:
    """A member's subscriptions by topic; of two to one topic the last counts."""
    return {one.topic: one for one in subscriptions}


def text_of(one: Subscription) -> str:
    """The text that tells statements about a topic apart; for plain tags it is the expression."""
    if one.class_filter:
        return f"\0{one.type}\0{one.expression}"
    return one.expression if one.type == TAG_TYPE else f"{one.type}\0{one.expression}"


def _with_version(one: Subscription, version: int) -> Subscription:
    """A new object, whatever the version was."""
    return msgspec.structs.replace(one, version=version)
