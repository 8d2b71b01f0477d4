"""Metric sections about groups: how far each is behind, and where it does not come on.

`tables/lag.py` says what lag is. It asks the store's queues, which only the loop may do. With many
groups and queues that adds up to more than the loop should be held for, so `lag` lets it turn every
millisecond; the answer is then a picture taken over a few turns, as lag is anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from aerobee.broker.monitoring.broker_metrics import yes_no
from aerobee.broker.monitoring.metrics import Fill, LoopTurns, Page
from aerobee.broker.tables.lag import ConsumerLag, QueueLag
from aerobee.broker.tables.stuck_queues import StuckQueues
from aerobee.broker.tables.topics import TopicTable
from aerobee.protocol.names import is_light, is_retry_topic, is_system_group
from aerobee.store.message_store import MessageStore

# Reading a store time may touch a cold page of the log; past this many a scrape gives no more.
_TIME_READS: Final = 1000
_LABELS: Final = ("consumer_group", "topic", "is_retry", "is_system")


class _Behind(NamedTuple):
    topic: str
    group: str
    known: int  # queues of which its lag is known
    unknown: int  # and those of which nobody knows it
    messages: int  # in the former
    waiting: int  # for their next try, in no queue of its own
    inflight: int
    oldest_ms: int | None  # store time of the oldest unread message, None when not asked


async def lag(
    consumer_lag: ConsumerLag,
    store: MessageStore,
    topics: TopicTable,
    has_light_queues: bool,
    wall_clock: Callable[[], float] = time.time,
) -> Fill:
    """The number and the age of the messages that each group has before it in each topic. Light
    queues are not shown: each of thousands would be a series."""
    behind: list[_Behind] = []
    reads_left = _TIME_READS
    turns = LoopTurns()
    for pair in consumer_lag.pairs():
        await turns.pause()
        if pair is None:
            continue
        topic, group = pair
        if (has_light_queues and is_light(topic)) or not consumer_lag.queue_count(group, topic):
            continue
        unread: list[QueueLag] = []
        known = unknown = 0
        for queue in consumer_lag.queues(group, topic):
            await turns.pause()
            if queue.lag is None:
                unknown += 1
                continue
            known += 1
            if queue.lag:
                unread.append(queue)
        may_read = len(unread) <= reads_left
        reads_left -= len(unread) if may_read else 0
        oldest_ms = _oldest_ms(store, topic, unread) if may_read else None
        messages = sum(queue.messages for queue in unread)
        inflight = sum(queue.given_out - queue.begin for queue in unread)
        waiting = consumer_lag.waiting_retries(group, topic)
        behind.append(_Behind(topic, group, known, unknown, messages, waiting, inflight, oldest_ms))
    now_ms = int(wall_clock() * 1000)
    return lambda page: _fill(page, behind, topics, now_ms)


def _fill(page: Page, behind: list[_Behind], topics: TopicTable, now_ms: int) -> None:
    lag = page.family("rocketmq_consumer_lag_messages", "Messages not yet consumed", _LABELS)
    inflight = page.family(
        "rocketmq_consumer_inflight_messages", "Messages given out, not yet consumed", _LABELS
    )
    ready = page.family("rocketmq_consumer_ready_messages", "Messages not yet given out", _LABELS)
    age = page.family(
        "rocketmq_consumer_lag_latency_milliseconds",
        "Age of the oldest message not yet consumed, 0 without such a message",
        _LABELS,
        merge=max,
    )
    unknown = page.family(
        "aerobee_consumer_lag_unknown_queues",
        "Queues of which nobody knows how far the group is, where there are any",
        _LABELS,
    )
    for one in behind:
        values = _values(one.group, one.topic, topics)
        if one.unknown:
            unknown.add(one.unknown, *values)
            if not one.known and not one.waiting:
                # A 0 here would say that nothing is to be consumed.
                continue
        lag.add(one.messages + one.waiting, *values)
        inflight.add(one.inflight, *values)
        ready.add(one.messages - one.inflight, *values)
        if one.oldest_ms is not None:
            age.add(max(0, now_ms - one.oldest_ms) if one.messages else 0, *values)


def _values(group: str, topic: str, topics: TopicTable) -> tuple[str, str, str, str]:
    system = topics.is_system(topic) or is_system_group(group)
    return group, topic, yes_no(is_retry_topic(topic)), yes_no(system)


def _oldest_ms(store: MessageStore, topic: str, unread: list[QueueLag]) -> int | None:
    """Store time of the oldest unread message; 0 when all is read, None when it is unknown."""
    times = [store.search.store_time(topic, queue.queue_id, queue.begin) for queue in unread]
    known = [stored_ms for stored_ms in times if stored_ms >= 0]
    return min(known, default=None if unread else 0)


async def stuck(watched: StuckQueues, topics: TopicTable) -> Fill:
    """The number of queues in which each group that is online does not come on. A group that comes
    on everywhere has a 0 for each topic that it is behind in, and otherwise no number."""
    found: list[tuple[str, str, int]] = []
    turns = LoopTurns()
    for one in watched.counts():
        await turns.pause()
        found.append(one)

    def fill(page: Page) -> None:
        family = page.family(
            "aerobee_group_stuck_queues",
            "Queues whose offset has stood for a minute with messages given out",
            _LABELS,
        )
        for group, topic, queues in found:
            family.add(queues, *_values(group, topic, topics))

    return fill
