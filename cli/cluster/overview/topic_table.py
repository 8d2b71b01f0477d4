"""The queues of very many topics, by one question to each broker.

A broker's table has its topics with their own rights; they are registered with what the broker as a
whole allows besides, so that is asked too. Both are for administrators: where a broker refuses, the
routes of the topics are asked for one by one.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aerobee.client.admin import Admin
from aerobee.client.administration.overview import Place, topic_table
from aerobee.client.errors import ClientError, NetworkError
from aerobee.protocol.bodies.routes import PERM_READ_WRITE, ClusterInfo, QueueRoute
from aerobee.protocol.bodies.topics import TopicConfig


class Tables(NamedTuple):
    """The queues of topics, by topic. `silent` are brokers that do not answer: their queues are
    missing."""

    spans: dict[str, tuple[QueueRoute, ...]]
    silent: list[str]


async def spans_by_tables(
    admin: Admin, names: frozenset[str], cluster: ClusterInfo
) -> Tables | None:
    """The queues of these topics as far as brokers answer; None where one refuses."""
    places = [
        Place(one.name, min(one.addresses), one.addresses[min(one.addresses)], one.cluster)
        for one in sorted(cluster.brokers.values(), key=lambda one: one.name)
        if one.addresses
    ]
    try:
        answers = await asyncio.gather(*(_table(admin, place) for place in places))
    except ClientError:
        return None
    found: dict[str, list[QueueRoute]] = {}
    silent = []
    for place, answer in zip(places, answers, strict=True):
        if answer is None:
            silent.append(place.name)
            continue
        table, allowed = answer
        for name in names & table.keys():
            one = table[name]
            perm = one.perm & (allowed | ~PERM_READ_WRITE)
            span = QueueRoute(place.name, one.read_queues, one.write_queues, perm, one.sys_flag)
            found.setdefault(name, []).append(span)
    return Tables({name: tuple(spans) for name, spans in found.items()}, silent)


async def _table(admin: Admin, place: Place) -> tuple[dict[str, TopicConfig], int] | None:
    """A broker's topics, and what it allows as a whole; None if it does not answer. Raises
    ClientError if it refuses."""
    try:
        table, settings = await asyncio.gather(
            topic_table(admin, place), admin.settings_at(place.address)
        )
    except NetworkError:
        return None
    text = settings.get("brokerPermission", "")
    return table, int(text) if text.isdecimal() else PERM_READ_WRITE
