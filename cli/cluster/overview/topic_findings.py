"""Judges what name servers and brokers say of a topic: each finding has a cause and a remedy.

Clients find a topic by its route, which name servers have from the brokers' registrations. So the
findings follow that way: name servers that do not know it, brokers that have it and are not in the
route, and what the route itself forbids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from aerobee.cli.cluster.topics import rights_text
from aerobee.cli.documents.topics import Finding
from aerobee.client.administration.overview import NameServerView, Place, RouteView, Told
from aerobee.nearest_name import nearest_name
from aerobee.protocol.bodies.routes import MASTER_ID, PERM_READ, PERM_WRITE, QueueRoute, TopicRoute
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.names import AUTO_CREATE_TOPIC, DLQ_PREFIX, is_retry_topic, is_system_topic

# Name servers of ours say so of a topic that has gone with its broker.
_GONE: Final = " (its broker "


class HereOn(NamedTuple):
    """A broker, and what it says of the topic. None: it does not say."""

    place: Place
    error: str | None = None
    has_it: bool | None = None
    perm: int | None = None
    #: The permission of the broker as a whole.
    broker_perm: int | None = None
    may_create: bool | None = None
    was_deleted: bool = False
    is_system: bool = False

    @classmethod
    def of_ours(cls, told: Told) -> HereOn:
        """By the status of a broker of ours, or why it has not answered."""
        if told.status is None or told.status.topic is None:
            return cls(told.place, None if told.error is None else str(told.error))
        topic = told.status.topic
        return cls(
            told.place,
            has_it=topic.exists,
            perm=topic.perm,
            broker_perm=told.status.permission,
            may_create=topic.may_create,
            was_deleted=topic.was_deleted,
            is_system=topic.is_system,
        )

    @classmethod
    def of_others(cls, told: Told, config: TopicConfig | None, is_known: bool) -> HereOn:
        """By the table and settings of one of RocketMQ's; `is_known`: it has given its table."""
        settings = told.settings or {}
        perm, creates = settings.get("brokerPermission", ""), settings.get("autoCreateTopicEnable")
        return cls(
            told.place,
            has_it=config is not None if is_known else None,
            perm=None if config is None else config.perm,
            broker_perm=int(perm) if perm.isdecimal() else None,
            may_create=None if creates is None else creates == "true",
        )


class Facts(NamedTuple):
    """The answers of all of them. `names` are all topics, if this topic has no route."""

    topic: str
    views: Sequence[NameServerView]
    routes: Sequence[RouteView]
    brokers: Sequence[HereOn]
    names: frozenset[str] = frozenset()

    @property
    def route(self) -> TopicRoute | None:
        """The route at the first name server that has one."""
        return next((one.route for one in self.routes if one.route is not None), None)


def sent_on(facts: Facts) -> list[str]:
    """The brokers where clients can send to it."""
    return sorted(
        span.broker_name
        for span in _spans(facts)
        if span.perm & PERM_WRITE and span.write_queues > 0 and _has_master(facts, span)
    )


def read_on(facts: Facts) -> list[str]:
    """The brokers where clients can read it; a slave is enough."""
    return sorted(
        span.broker_name
        for span in _spans(facts)
        if span.perm & PERM_READ and span.read_queues > 0 and _addresses(facts, span.broker_name)
    )


def findings(facts: Facts) -> list[Finding]:
    """All that is in the way, the most general first."""
    found = [*_silent(facts)]
    if facts.route is None:
        return [*found, *_without_route(facts)]
    return [*found, *_unregistered(facts), *_in_route(facts), *_system(facts)]


def _spans(facts: Facts) -> Sequence[QueueRoute]:
    return () if facts.route is None else facts.route.queues


def _addresses(facts: Facts, broker: str) -> dict[int, str]:
    route = facts.route
    brokers = () if route is None else route.brokers
    return next((one.addresses for one in brokers if one.name == broker), {})


def _has_master(facts: Facts, span: QueueRoute) -> bool:
    return MASTER_ID in _addresses(facts, span.broker_name)


def _silent(facts: Facts) -> Iterator[Finding]:
    for view in facts.views:
        if view.error is not None:
            yield Finding(
                finding="name_server_silent",
                where=view.address,
                cause=str(view.error),
                remedy="start it, or take it out of the clients' lists: clients that ask it first "
                "wait for its time-out",
            )


def _without_route(facts: Facts) -> Iterator[Finding]:
    topic = facts.topic
    there = [one for one in facts.brokers if one.has_it]
    for one in there:
        yield Finding(
            finding="not_registered",
            where=one.place.name,
            cause=f"the broker at {one.place.address} has the topic, and no name server has it "
            "from it",
            remedy="see aerobee status: which name servers the broker is registered at, and why "
            "not; a change takes up to 30 s to arrive",
        )
    if there:
        return
    if any(one.was_deleted for one in facts.brokers):
        yield Finding(
            finding="deleted",
            where=", ".join(one.place.name for one in facts.brokers if one.was_deleted),
            cause="it was deleted, and messages from before that still wait; they are dropped",
            remedy=f"if it is needed, make it anew: aerobee topic create {topic}",
        )
    for view in facts.routes:
        _, gone, rest = view.remark.partition(_GONE)
        if gone:
            yield Finding(
                finding="broker_gone",
                where=view.address,
                cause=f"{gone.lstrip(' (')}{rest.removesuffix(')')}",
                remedy="start that broker, or make the topic on another",
            )
    near = nearest_name(topic, facts.names - {topic})
    if near is not None:
        yield Finding(
            finding="another_name",
            where=None,
            cause=f"no topic has this name, and one is called {near}",
            remedy=f"if {near} is meant, correct the name in the client",
        )
    yield _auto_creation(facts)


def _auto_creation(facts: Facts) -> Finding:
    create = f"aerobee topic create {facts.topic}"
    creating = [one.place.name for one in facts.brokers if one.may_create]
    if creating and AUTO_CREATE_TOPIC in facts.names:
        return Finding(
            finding="not_made_yet",
            where=", ".join(sorted(set(creating))),
            cause="nobody has made it; the first message that is sent to it makes it",
            remedy=f"send to it, or: {create}",
        )
    if creating or any(one.may_create is None for one in facts.brokers):
        return Finding(
            finding="does_not_exist", where=None, cause="nobody has made it", remedy=create
        )
    return Finding(
        finding="auto_creation_off",
        where=", ".join(sorted({one.place.name for one in facts.brokers})) or None,
        cause="nobody has made it, and a first send does not (topics.auto_create, "
        "autoCreateTopicEnable)",
        remedy=create,
    )


def _unregistered(facts: Facts) -> Iterator[Finding]:
    for view in facts.routes:
        if view.route is None and view.error is None:
            yield Finding(
                finding="not_at_this_name_server",
                where=view.address,
                cause="this name server does not know the topic, others do: clients that ask it "
                "have no route",
                remedy="its brokers must name this name server too (namesrvAddr); aerobee status "
                "says where each is registered",
            )
    in_route = {span.broker_name for span in _spans(facts)}
    for one in facts.brokers:
        if one.has_it and one.place.broker_id == MASTER_ID and one.place.name not in in_route:
            yield Finding(
                finding="not_registered",
                where=one.place.name,
                cause="the broker has the topic, and is not in its route",
                remedy="wait half a minute for its next registration; aerobee status says whether "
                "it succeeds",
            )


def _in_route(facts: Facts) -> Iterator[Finding]:
    by_name = {one.place.name: one for one in facts.brokers if one.place.broker_id == MASTER_ID}
    for span in _spans(facts):
        addresses, broker = _addresses(facts, span.broker_name), by_name.get(span.broker_name)
        if not addresses:
            yield _finding(span, "broker_gone", "its route names this broker, and no address of it",
                           "start the broker; its queues come back with it")  # fmt: skip
            continue
        if MASTER_ID not in addresses:
            yield _finding(span, "only_on_a_slave",
                           "no master of this broker is registered: it can be read, not sent to",
                           "start the master, or make a slave the master")  # fmt: skip
        elif broker is not None and broker.error is not None:
            yield _finding(span, "broker_silent", broker.error,
                           "clients fail there until it answers, or its route is gone")  # fmt: skip
        yield from _rights(span, broker, facts.topic)
        yield from _queues(span, facts.topic)


def _queues(span: QueueRoute, topic: str) -> Iterator[Finding]:
    change = f"aerobee topic create {topic} --update"
    for word, count in (("write", span.write_queues), ("read", span.read_queues)):
        if count <= 0:
            cause = f"it has no queues to {word} here"
            yield _finding(span, "no_queues", cause, f"{change} --{word}-queues N")
    if span.write_queues > span.read_queues > 0:
        cause = f"{span.write_queues} queues are sent to, and {span.read_queues} are read"
        remedy = f"{change} --read-queues {span.write_queues}"
        yield _finding(span, "queues_nobody_reads", cause, remedy)


def _rights(span: QueueRoute, broker: HereOn | None, topic: str) -> Iterator[Finding]:
    """Find which takes a right away: the broker as a whole, or the topic."""
    for bit, right, word in ((PERM_WRITE, "sent to", "write"), (PERM_READ, "read", "read")):
        if span.perm & bit:
            continue
        whole = None if broker is None else broker.broker_perm
        if whole is not None and not whole & bit:
            yield _finding(
                span, f"broker_without_{word}",
                f"nothing on this broker can be {right}: its permission is "
                f"{rights_text(whole) or 'none'}",
                f"aerobee broker permission {span.broker_name} --{word} yes",
            )  # fmt: skip
        elif broker is not None and broker.perm is not None and broker.perm & bit:
            yield _finding(
                span, f"{word}_withheld",
                f"the broker has it with {rights_text(broker.perm)}, and it is registered with "
                f"{rights_text(span.perm) or 'none'}: the broker is drained, or name servers were "
                "told to withhold the right",
                f"aerobee broker drain {span.broker_name} --undo ends a drain; a registration of "
                "changed topics ends the other",
            )  # fmt: skip
        else:
            yield _finding(
                span, f"topic_without_{word}",
                f"it cannot be {right}: its rights are {rights_text(span.perm) or 'none'}",
                f"aerobee topic create {topic} --update --perm rw",
            )  # fmt: skip


def _finding(span: QueueRoute, word: str, cause: str, remedy: str) -> Finding:
    return Finding(finding=word, where=span.broker_name, cause=cause, remedy=remedy)


def _system(facts: Facts) -> Iterator[Finding]:
    topic = facts.topic
    if topic.startswith(DLQ_PREFIX) or is_retry_topic(topic):
        yield Finding(
            finding="topic_of_a_group",
            where=None,
            cause="brokers put into it what a consumer group has failed on",
            remedy="consumers of the group read its retries by themselves; nobody sends to it",
        )
    elif is_system_topic(topic) or any(one.is_system for one in facts.brokers):
        yield Finding(
            finding="system_topic",
            where=None,
            cause="it is a topic of the system: brokers refuse most sends to it",
            remedy="use a topic of your own",
        )
