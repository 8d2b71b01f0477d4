"""The broker's own counters: plain ints that the request path adds to, read once a scrape.

Nothing here knows Prometheus. `send.py` and `pull.py` keep the small objects handed out by
`BrokerStats.topic` and `BrokerStats.consumer` and add to them; `monitoring/metrics.py` turns
everything into families at a scrape. A plain add costs 30 ns, a labelled Prometheus counter 1.7 us:
at 100,000 sends a second that is the difference between 0.3 % and 17 % of a core. The store's own
counts (messages appended and read, their bytes) are not counted here again; totals and rates come
from the store's counters (`store/store_stats.py`).

Invariants
- Counters only grow; a topic's or group's counters go away as a whole when it is deleted.
- Every table is bounded. Names come from configured topics and groups, never straight from a
  frame, and past the bound all newcomers share one object named `__other__`.
- Request codes come from the peer. A code that no handler knows is answered with
  REQUEST_CODE_NOT_SUPPORTED and counted under `UNKNOWN_CODE`, so hostile codes add no series.

Threads: all writing happens on the broker's event loop. Readers on other threads get a snapshot
taken on the loop (`monitoring/metrics.py`); nothing here locks.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.names import LMQ_PREFIX, is_light

OTHER = "__other__"
UNKNOWN_CODE = -1
#: Queues for which the beginnings of groups are kept, besides those of the newest pair.
MOST_BEGINNINGS = 10_000
_CODE_NOT_SUPPORTED = 3  # ResponseCode.REQUEST_CODE_NOT_SUPPORTED, protocol/WIRE.md 2

#: Upper bounds, in bytes and in seconds, like those of RocketMQ 5.x (milliseconds there).
MESSAGE_SIZE_BOUNDS: tuple[float, ...] = (1024, 4096, 524288, 1048576, 2097152, 4194304)
RPC_LATENCY_BOUNDS: tuple[float, ...] = (0.001, 0.003, 0.005, 0.007, 0.01, 0.1, 1.0, 2.0, 3.0)
#: For answers of clients, which get 10 s.
CLIENT_CALL_BOUNDS: tuple[float, ...] = (0.01, 0.1, 1.0, 3.0, 10.0)
#: For stages inside the broker, microseconds to seconds.
STAGE_BOUNDS: tuple[float, ...] = (
    0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0,
)  # fmt: skip

MESSAGE_NORMAL = "normal"
MESSAGE_FIFO = "fifo"  # carries a sharding key
MESSAGE_DELAY = "delay"  # counted where it waits, and where it is delivered
MESSAGE_TRANSACTION = "transaction"  # likewise: as a half message, and when it is committed

RESULT_SUCCESS = "success"
# Answers of a request that was served: there is nothing (yet), a group has no offset or nobody is
# online in it, or the offset to go on from is another.
_ANSWERS = frozenset(
    {
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.CONSUMER_NOT_ONLINE,
    }
)
# Questions that an error code answers with "not there", as clients expect: consumers ask for the
# members of their group, tools and exporters for everything that might be there.
_NONE_THERE = frozenset(
    {
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, ResponseCode.SYSTEM_ERROR),
        (RequestCode.VIEW_BROKER_STATS_DATA, ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_TOPIC_STATS_INFO, ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_TOPIC_CONFIG, ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    }
)


def is_refusal(request_code: int, response_code: int) -> bool:
    """Whether a request that was answered so was refused, rather than served."""
    return (
        response_code != ResponseCode.SUCCESS
        and response_code not in _ANSWERS
        and (request_code, response_code) not in _NONE_THERE
    )


class Buckets:
    """A histogram of plain ints; `counts` has one entry more than `bounds`, for larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count `times` observations of `value` (in the unit of the bounds)."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class TrafficCounts(NamedTuple):
    """Counts that only grow: messages, their bytes, messages sent back."""

    messages: int
    size: int
    sent_back: int


@dataclass(slots=True, eq=False)
class QueueCounts:
    """Counts of messages put into a queue, or given from it to a group: messages, bytes; for a
    group also the number of pulls, and the time of reading."""

    messages: int = 0
    size: int = 0
    times: int = 0
    spent_s: float = 0.0

    @property
    def counts(self) -> TrafficCounts:
        return TrafficCounts(self.messages, self.size, 0)


@dataclass(slots=True, eq=False)
class TopicStats:
    """Counts of the messages that came in for a topic and a kind of message. `bytes_in` are stored
    bytes."""

    topic: str
    message_type: str = MESSAGE_NORMAL
    messages_in: int = 0
    bytes_in: int = 0
    failures: int = 0
    sizes: Buckets = field(default_factory=lambda: Buckets(MESSAGE_SIZE_BOUNDS))
    queues: dict[int, QueueCounts] = field(default_factory=dict)

    @property
    def counts(self) -> TrafficCounts:
        return TrafficCounts(self.messages_in, self.bytes_in, 0)


@dataclass(slots=True, eq=False)
class ConsumerStats:
    """Counts of the messages that a consumer group took from a topic, and gave back.

    `pulled` is the queue offset after the last message given to the group, by queue id.
    """

    group: str
    topic: str
    messages_out: int = 0
    bytes_out: int = 0
    pulled: dict[int, int] = field(default_factory=dict)
    queues: dict[int, QueueCounts] = field(default_factory=dict)
    sent_back: int = 0
    sent_to_dlq: int = 0

    @property
    def counts(self) -> TrafficCounts:
        return TrafficCounts(self.messages_out, self.bytes_out, self.sent_back)


class RequestKey(NamedTuple):
    """The labels of a request series."""

    code: int
    response_code: int
    result: str
    long_polling: bool


class RequestStats(Buckets):
    """Latency of a kind of request with a kind of answer, in seconds."""

    __slots__ = ("key",)

    def __init__(self, key: RequestKey) -> None:
        super().__init__(RPC_LATENCY_BOUNDS)
        self.key = key

    @property
    def count(self) -> int:
        return sum(self.counts)


class Tally(dict[str, int]):
    """Counts by a word of our own choosing (a reason, a cause, a kind)."""

    __slots__ = ()

    def bump(self, word: str) -> None:
        self[word] = self.get(word, 0) + 1


def _common_name(name: str) -> str:
    return LMQ_PREFIX if is_light(name) else name


class RefusalMemory(Protocol):
    """Remembers refusals for administrators (`monitoring/overview/refusals.py`)."""

    def add(self, host: str, request_code: int, response_code: int, remark: str, /) -> None:
        """Take an answer with an error code to a peer."""


class BrokerStats:
    """All counters of a broker. `wall_clock` gives seconds since 1970."""

    __slots__ = (
        "_began", "_began_count", "_consumers", "_light", "_limit", "_other_queue", "_queue_count",
        "_remember", "_requests", "_served",
        "_topics", "client_calls", "events", "failures_without_topic", "get_found", "get_missed",
        "get_time_max_s", "group_warnings", "handler_failures", "overflowed", "put_failures",
        "refusals", "started_ms",
    )  # fmt: skip

    def __init__(
        self,
        wall_clock: Callable[[], float] = time.time,
        series_limit: int = 50_000,
        *,
        light: bool = False,
        remember: Callable[[], RefusalMemory] | None = None,
    ) -> None:
        """With `light`, light queues and groups are counted together, under their prefix.
        `remember` makes the memory of refusals, when the first comes."""
        self._remember = remember
        #: None until a request was refused.
        self.refusals: RefusalMemory | None = None
        self._limit = series_limit
        self._queue_count = 0
        self._other_queue = QueueCounts()
        self._began: dict[tuple[str, str], dict[int, int]] = {}
        self._began_count = 0
        self._topics: dict[tuple[str, str], TopicStats] = {}
        self._consumers: dict[tuple[str, str], ConsumerStats] = {}
        self._requests: dict[tuple[int, int, str, bool], RequestStats] = {}
        self._served: dict[int, RequestStats] = {}  # the part of _requests that is hot
        self.started_ms = int(wall_clock() * 1000)
        self.put_failures = 0  # sends refused or failed, here or by the store
        self.failures_without_topic = 0  # the part of put_failures that no topic counts
        self.get_found = self.get_missed = 0  # answered pulls
        self.handler_failures = 0
        self.get_time_max_s = 0.0  # longest read of the store for a pull
        self.group_warnings = Tally()  # by kind: mixed subscriptions, shared clientId, ...
        self._light = light
        # The broker's requests to clients: latency by request code and outcome.
        self.client_calls: dict[tuple[int, str], Buckets] = {}
        self.events = Tally()  # anything else worth a counter
        self.overflowed = Tally()  # look-ups that ended at __other__, by table

    # --- the request path -------------------------------------------------------------------

    def topic(self, topic: str, message_type: str = MESSAGE_NORMAL) -> TopicStats:
        """The counters of a configured topic; the same object each time, so it may be kept."""
        found = self._topics.get((topic, message_type))
        return found if found is not None else self._new_topic(topic, message_type)

    def consumer(self, group: str, topic: str) -> ConsumerStats:
        """The counters of a group on a topic; the same object each time."""
        found = self._consumers.get((group, topic))
        return found if found is not None else self._new_consumer(group, topic)

    def request(
        self,
        code: int,
        response_code: int,
        result: str = RESULT_SUCCESS,
        long_polling: bool = False,
    ) -> RequestStats:
        """The latency buckets of a kind of request; `.add(seconds, times)` counts answers."""
        found = self._requests.get((code, response_code, result, long_polling))
        if found is not None:
            return found
        return self._new_request(RequestKey(code, response_code, result, long_polling))

    def request_served(self, code: int, seconds: float) -> None:
        """Count a request of a code with a handler that was answered with SUCCESS: the hot form."""
        served = self._served.get(code)
        if served is None:
            served = self._served[code] = self.request(code, 0)
        served.counts[bisect_left(RPC_LATENCY_BOUNDS, seconds)] += 1
        served.total += seconds

    def requests_served(self, code: int, seconds: float, times: int) -> None:
        """Count several requests of equal latency, like `request_served`."""
        self.request(code, 0).add(seconds, times)

    def request_refused(self, code: int, response_code: int, seconds: float = 0.0) -> None:
        """Count a request that was answered with an error code; "success" means that it was
        answered."""
        self.request(code, response_code).add(seconds)

    def note_refusal(self, host: str, code: int, response_code: int, remark: str) -> None:
        """Remember whose request was answered with an error code, and why."""
        if self.refusals is None:
            if self._remember is None:
                return
            self.refusals = self._remember()
        self.refusals.add(host, code, response_code, remark)

    def client_called(self, code: int, outcome: str, seconds: float) -> None:
        """Count a request of the broker to a client, which took `seconds`; `outcome` is one of few
        words."""
        calls = self.client_calls.get((code, outcome))
        if calls is None:
            calls = self.client_calls[code, outcome] = Buckets(CLIENT_CALL_BOUNDS)
        calls.add(seconds)

    def stored(
        self, topic: TopicStats, messages: int, stored_bytes: int, queue_id: int = 0
    ) -> None:
        """Count `messages` of an append to a queue; sizes are counted at their mean, like in
        5.x."""
        topic.messages_in += messages
        topic.bytes_in += stored_bytes
        sizes = topic.sizes
        sizes.counts[bisect_left(MESSAGE_SIZE_BOUNDS, stored_bytes / messages)] += messages
        sizes.total += stored_bytes
        queue = topic.queues.get(queue_id) or self._new_queue(topic.queues, queue_id)
        queue.messages += messages
        queue.size += stored_bytes

    def stored_many(
        self, topic: TopicStats, queues: Iterable[tuple[int, int, int]], sizes: Iterable[int]
    ) -> None:
        """Count several appends: queue id, messages and bytes of each queue, and messages by the
        bounds of their sizes."""
        for queue_id, messages, stored_bytes in queues:
            topic.messages_in += messages
            topic.bytes_in += stored_bytes
            topic.sizes.total += stored_bytes
            queue = topic.queues.get(queue_id) or self._new_queue(topic.queues, queue_id)
            queue.messages += messages
            queue.size += stored_bytes
        counts = topic.sizes.counts
        for kind, messages in enumerate(sizes):
            counts[kind] += messages

    def failed(self, topic: TopicStats | None = None) -> None:
        """Count a send that was refused, or failed; `topic` is None if it named no existing
        topic."""
        self.put_failures += 1
        if topic is None:
            self.failures_without_topic += 1
        else:
            topic.failures += 1

    def delivered(
        self,
        consumer: ConsumerStats,
        messages: int,
        stored_bytes: int,
        queue_id: int = 0,
        spent_s: float = 0.0,
    ) -> None:
        """Count a pull that was answered with messages of a queue, which took `spent_s` to read. A
        pull without messages adds to `get_missed` instead."""
        consumer.messages_out += messages
        consumer.bytes_out += stored_bytes
        queue = consumer.queues.get(queue_id) or self._new_queue(consumer.queues, queue_id)
        queue.messages += messages
        queue.size += stored_bytes
        queue.times += 1
        queue.spent_s += spent_s
        self.get_found += 1

    def pulled(self, group: str, topic: str) -> Mapping[int, int]:
        """`ConsumerStats.pulled` of a group in a topic, empty when it took nothing yet."""
        found = self._consumers.get((group, topic))
        return {} if found is None else found.pulled

    def began(self, group: str, topic: str) -> Mapping[int, int]:
        """The places where a group has begun in a topic, by queue id, as far as `begins` got them
        and not too long ago."""
        return self._began.get((group, topic), {})

    def begins(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note the place where a group begins in a queue before it commits an offset there
        (`tables/lag.py`)."""
        # The pair goes to the end: the oldest are forgotten.
        queues = self._began[group, topic] = self._began.pop((group, topic), {})
        if queue_id not in queues:
            self._began_count += 1
        queues[queue_id] = queue_offset
        while self._began_count > MOST_BEGINNINGS and len(self._began) > 1:
            self._forget_began(next(iter(self._began)))

    def _forget_began(self, pair: tuple[str, str]) -> None:
        self._began_count -= len(self._began.pop(pair))

    def messages_out(self, group: str, topic: str) -> int:
        """The number of messages that a group has taken from a topic; makes no counters."""
        found = self._consumers.get((group, topic))
        return 0 if found is None else found.messages_out

    # --- tables -----------------------------------------------------------------------------

    def topics(self) -> list[TopicStats]:
        return list(self._topics.values())

    def consumers(self) -> list[ConsumerStats]:
        return list(self._consumers.values())

    def requests(self) -> list[RequestStats]:
        return list(self._requests.values())

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic; the totals keep what they counted."""
        for key in [key for key in self._topics if key[0] == topic]:
            self._queue_count -= len(self._topics.pop(key).queues)
        for pair in [pair for pair in self._consumers if pair[1] == topic]:
            self._queue_count -= len(self._consumers.pop(pair).queues)
        for pair in [pair for pair in self._began if pair[1] == topic]:
            self._forget_began(pair)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted consumer group."""
        for pair in [pair for pair in self._consumers if pair[0] == group]:
            self._queue_count -= len(self._consumers.pop(pair).queues)
        for pair in [pair for pair in self._began if pair[0] == group]:
            self._forget_began(pair)

    def _new_topic(self, topic: str, message_type: str) -> TopicStats:
        if self._light:
            topic = _common_name(topic)
        if len(self._topics) >= self._limit and (topic, message_type) not in self._topics:
            self.overflowed.bump("topic")
            topic, message_type = OTHER, MESSAGE_NORMAL
        key = (topic, message_type)
        return self._topics.setdefault(key, TopicStats(topic, message_type))

    def _new_consumer(self, group: str, topic: str) -> ConsumerStats:
        if self._light:
            group, topic = _common_name(group), _common_name(topic)
        if len(self._consumers) >= self._limit and (group, topic) not in self._consumers:
            self.overflowed.bump("consumer")
            group = topic = OTHER
        return self._consumers.setdefault((group, topic), ConsumerStats(group, topic))

    def _new_queue(self, queues: dict[int, QueueCounts], queue_id: int) -> QueueCounts:
        if self._queue_count >= self._limit:
            self.overflowed.bump("queue")
            return self._other_queue
        self._queue_count += 1
        return queues.setdefault(queue_id, QueueCounts())

    def _new_request(self, key: RequestKey) -> RequestStats:
        if key.response_code == _CODE_NOT_SUPPORTED or len(self._requests) >= self._limit:
            key = key._replace(code=UNKNOWN_CODE)
        return self._requests.setdefault(key, RequestStats(key))
