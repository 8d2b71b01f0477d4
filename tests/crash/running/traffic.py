"""Producers and consumers that write down what they are told, with a mark in the disk's log.

Everything a client does is derived from the seed; how answers interleave is the machine's affair.
Each answer is marked the moment it is received, so the recorder's log says what was on the disk
when the client could rely on it.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from aerobee.protocol.frames.command import Command
from tests.crash.judges.history import FAIL, OK, History, Seen, Sent
from tests.crash.judges.records import records_of
from tests.crash.running.link import (
    COMMIT,
    PULL,
    SEND,
    SUCCESS,
    Link,
    log_offset_of,
    pull_fields,
    send_fields,
)

TOPIC, QUEUES = "Orders", 3
# A few sizes only: records of one size can take each other's places after a cut.
SIZES = (120, 120, 120, 1_500, 1_500, 5_000, 9_000)
_BURST = 8
_HOLD_MS = 10_000
_LOOK_S = 0.05


def body_of(producer: int, sequence: int, size: int, seed: int) -> bytes:
    """A body like no other, with its own checksum."""
    filler = random.Random(f"{seed}-{producer}-{sequence}").randbytes(size)
    return b"%d-%d-%08x:" % (producer, sequence, zlib.crc32(filler)) + filler


class Marks:
    """Numbers marks of one run; any thread. `say` enters one into the disk's log."""

    def __init__(self, say: Callable[[int], None]) -> None:
        self._say = say
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            number = next(self._numbers)
            self._say(number)
            return number


class Traffic:
    """The clients of one run. `run` may be called again, after a restart."""

    def __init__(
        self,
        history: History,
        marks: Marks,
        seed: int,
        topic_share: float = 0.1,
        producers: int = 2,
        consumers: int = 1,
    ) -> None:
        self.history = history
        self._marks = marks
        self._seed = seed
        self._sequences = [0] * producers
        # Each consumer reads all queues; the first commits for the group.
        self._positions = [dict.fromkeys(range(QUEUES), 0) for _ in range(consumers)]
        self._topics = 0
        # How many bursts of the first producer are followed by the making of a topic.
        self._topic_share = topic_share
        self._failures: list[BaseException] = []
        self._done = threading.Event()

    def prepare(self, port: int) -> None:
        """Make the topic."""
        with Link(port) as link:
            self._create(link, TOPIC)

    def run(
        self,
        port: int,
        messages: int,
        sizes: Sequence[int] = SIZES,
        pause_s: float = 0.0,
        burst: int = _BURST,
    ) -> None:
        """Send `messages` from each producer, while the consumers read along."""
        self._done.clear()
        self._failures.clear()

        def produce(producer: int) -> None:
            self._produce(port, producer, messages, sizes, pause_s, burst)

        producers = [
            threading.Thread(target=self._guarded, args=(produce, producer))
            for producer in range(len(self._sequences))
        ]

        def consume(consumer: int) -> None:
            self._consume(port, consumer)

        consumers = [
            threading.Thread(target=self._guarded, args=(consume, consumer))
            for consumer in range(len(self._positions))
        ]
        for thread in (*producers, *consumers):
            thread.start()
        for thread in producers:
            thread.join()
        self._done.set()
        for thread in consumers:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _guarded(self, work: Callable[[int], None], argument: int) -> None:
        try:
            work(argument)
        except BaseException as error:  # noqa: BLE001 - raised by run()
            self._failures.append(error)

    # --- producing --------------------------------------------------------------------------

    def _produce(
        self,
        port: int,
        producer: int,
        messages: int,
        sizes: Sequence[int],
        pause_s: float,
        burst: int,
    ) -> None:
        rng = random.Random(f"{self._seed}-{producer}-{self._sequences[producer]}")
        with Link(port) as link:
            left = messages
            while left:
                count = min(left, rng.randrange(1, burst + 1))
                self._burst(link, producer, [rng.choice(sizes) for _ in range(count)], rng)
                left -= count
                if producer == 0 and rng.random() < self._topic_share:
                    self._topics += 1
                    self._create(link, f"Made{self._topics}")
                if pause_s:
                    threading.Event().wait(pause_s)

    def _burst(self, link: Link, producer: int, sizes: list[int], rng: random.Random) -> None:
        waiting: dict[int, Sent] = {}
        for size in sizes:
            sent = self.make(producer, rng.randrange(QUEUES), size)
            fields = send_fields(sent.topic, sent.queue_id, sent.properties)
            waiting[link.ask(SEND, fields, sent.body)] = sent
        while waiting:
            for answer in link.answers():
                self.note(waiting.pop(answer.opaque), answer)

    def make(self, producer: int, queue_id: int, size: int) -> Sent:
        """The next message of a producer, entered into the history."""
        sequence = self._sequences[producer]
        self._sequences[producer] += 1
        properties = {
            "KEYS": f"k{sequence}",
            "UNIQ_KEY": f"U{producer}x{sequence}",
            "WAIT": "true",
            "TAGS": f"t{sequence % 3}",
        }
        body = body_of(producer, sequence, size, self._seed)
        sent = Sent(producer, sequence, TOPIC, queue_id, body, properties)
        self.history.sends.append(sent)
        return sent

    def note(self, sent: Sent, answer: Command) -> None:
        """Enter an answer; OK only if it says that the message is stored as promised."""
        if answer.code == SUCCESS:
            sent.queue_offset = int(answer.ext["queueOffset"])
            sent.log_offset = log_offset_of(answer.ext["msgId"])
            sent.mark = self._marks.next()
            sent.at = time.monotonic()
            sent.outcome = OK
        elif is_refusal(answer):
            sent.outcome = FAIL

    def _create(self, link: Link, topic: str) -> None:
        link.create_topic(topic, QUEUES)
        self.history.topics[topic] = self._marks.next()

    # --- consuming --------------------------------------------------------------------------

    def _consume(self, port: int, consumer: int) -> None:
        """One held pull for each queue; the first consumer commits where it has come to."""
        positions = self._positions[consumer]
        with Link(port) as link:
            held = {self._pull(link, queue_id, positions): queue_id for queue_id in range(QUEUES)}
            while not self._done.is_set():
                for answer in link.answers(_LOOK_S):
                    queue_id = held.pop(answer.opaque, None)
                    if queue_id is None:
                        continue  # a commit's
                    self._take(queue_id, answer, positions)
                    held[self._pull(link, queue_id, positions)] = queue_id
                    if consumer == 0:
                        self._commit(link, queue_id, positions)

    def _pull(self, link: Link, queue_id: int, positions: dict[int, int]) -> int:
        return link.ask(PULL, pull_fields(TOPIC, queue_id, positions[queue_id], _HOLD_MS))

    def _take(self, queue_id: int, answer: Command, positions: dict[int, int]) -> None:
        if answer.code != SUCCESS:
            return
        records = list(records_of(answer.body))
        mark = self._marks.next()
        for record in records:
            self.history.seen.append(Seen(TOPIC, queue_id, record.queue_offset, record.body, mark))
        positions[queue_id] = int(answer.ext["nextBeginOffset"])

    def _commit(self, link: Link, queue_id: int, positions: dict[int, int]) -> None:
        link.ask(
            COMMIT,
            {
                "consumerGroup": "crash-test", "topic": TOPIC, "queueId": queue_id,
                "commitOffset": positions[queue_id],
            },
        )  # fmt: skip


def is_refusal(answer: Command) -> bool:
    """Whether the answer says that nothing was stored, and nothing will be."""
    return answer.code in (2, 13) or (answer.code == 14 and "stopped" not in (answer.remark or ""))
