"""A producer and a consumer of ours that run all the time, and an account of what they did."""

from __future__ import annotations

import threading
from collections import defaultdict
from types import TracebackType
from typing import NamedTuple, Self

from aerobee.client.blocking_roles import Producer, PushConsumer
from aerobee.client.errors import ClientError
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ConsumeFrom, ProducerOptions, PushOptions

# Clients of RocketMQ ask for routes each half a minute, which is all that these do otherwise.
QUICK_S = 1.0
_BETWEEN_SENDS_S = 0.01
# The log fills some segments.
_PADDING = "x" * 600


class Place(NamedTuple):
    """A queue of a broker name."""

    broker: str
    queue: int


class Traffic:
    """Sends numbered bodies to a topic, each once, and consumes it with one group."""

    def __init__(self, names: str, topic: str, group: str) -> None:
        self._topic = topic
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._producer = Producer(
            names, "runbook", ProducerOptions(retries=0, route_refresh_interval_s=QUICK_S)
        )
        self._consumer = PushConsumer(
            names,
            group,
            self._take,
            PushOptions(
                consume_from=ConsumeFrom.FIRST,
                route_refresh_interval_s=QUICK_S,
                rebalance_interval_s=QUICK_S,
                heartbeat_interval_s=QUICK_S,
                offset_store_interval_s=QUICK_S,
                pull_retry_delay_s=QUICK_S,
                suspend_ms=2000,
            ),
        )
        self._sending = threading.Thread(target=self._send, name="runbook producer")
        #: Bodies whose sends were answered as stored, by the broker that has them.
        self.acknowledged: dict[str, set[str]] = defaultdict(set)
        #: Sends that failed; each may be stored all the same.
        self.failures: list[tuple[str, str]] = []
        self._taken: dict[str, list[tuple[Place, int]]] = defaultdict(list)
        # Offsets behind which a message may come again, since the last change of a role.
        self._known: dict[Place, int] = {}
        self._seen: set[tuple[Place, int]] = set()
        #: Deliveries that no change of a role excuses.
        self.twice: list[tuple[str, Place, int]] = []
        self.excused = 0

    def __enter__(self) -> Self:
        self._producer.start()
        self._consumer.start()
        self._consumer.subscribe(self._topic)
        self._sending.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_sending()
        self._consumer.close()
        self._producer.close()

    def end_sending(self) -> None:
        """Send nothing more."""
        self._ending.set()
        if self._sending.ident is not None:
            self._sending.join()

    def _send(self) -> None:
        number = 0
        while not self._ending.wait(_BETWEEN_SENDS_S):
            body = f"live-{number}"
            number += 1
            try:
                sent = self._producer.send(
                    Message(self._topic, body.encode(), properties={"padding": _PADDING})
                )
            except ClientError as error:
                self.failures.append((body, repr(error)))
            else:
                self.acknowledged[sent.queue.broker_name].add(body)

    def _take(self, messages: list[ReceivedMessage]) -> None:
        with self._lock:
            for message in messages:
                place = Place(message.queue.broker_name, message.queue.queue_id)
                at = place, message.queue_offset
                body = message.body.decode()
                if at in self._seen and message.queue_offset < self._known.get(place, 1 << 62):
                    self.twice.append((body, *at))
                self.excused += at in self._seen
                self._seen.add(at)
                self._taken[body].append(at)

    def changes_roles(self, known: dict[Place, int]) -> None:
        """The next master of these queues knows these offsets of the group: what lies behind them
        may come again."""
        with self._lock:
            self._known |= known

    @property
    def taken(self) -> dict[str, list[tuple[Place, int]]]:
        """Where each body was found, in the order of the deliveries."""
        with self._lock:
            return {body: list(places) for body, places in self._taken.items()}

    def sent_to(self, broker: str) -> int:
        """How many messages a broker name has acknowledged."""
        return len(self.acknowledged[broker])
