"""Producers, consumers of both brokers and somebody who asks the master for the time, all of which
write down what they are told and come again when they lose their connection."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from aerobee.protocol.frames.command import Command
from tests.crash.judges.history import FAIL, OK, History, Seen, Sent
from tests.crash.judges.records import records_of
from tests.crash.replication_links.brokers import PORT
from tests.crash.replication_links.links import MASTER, SLAVE, Links
from tests.crash.running.link import (
    MAX_OFFSET,
    PULL,
    SEND,
    SUCCESS,
    Link,
    log_offset_of,
    pull_fields,
    send_fields,
)
from tests.crash.running.traffic import QUEUES, TOPIC, Marks, Traffic, is_refusal

PRODUCERS = 2
#: Answers of a message that is stored, and not known to be synced or on a slave.
STORED = {10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}
_SIZES = (100, 300, 300, 1_500, 8_000)
_PAUSE_S = 0.02
_ANSWER_S = 3.0


class Clients:
    """The clients of one run, a thread each."""

    def __init__(self, links: Links, seed: int) -> None:
        self.history = History()
        #: Sends that were answered SEND_OK: they are on the slave.
        self.promised: list[Sent] = []
        self.answers: Counter[str] = Counter()
        #: Messages that were read, by the broker.
        self.read: Counter[str] = Counter()
        #: The longest that the master let a small question wait, in seconds, while it ran.
        self.waited_s = 0.0
        self._links = links
        self._seed = seed
        self._traffic = Traffic(
            self.history, Marks(lambda _number: None), seed, producers=PRODUCERS
        )
        self._over = threading.Event()
        self._sending = threading.Event()
        self._failures: list[BaseException] = []
        works: list[tuple[str, Callable[[Link], None]]] = [
            (MASTER, partial(self._produce, number)) for number in range(PRODUCERS)
        ]
        works += [(role, partial(self._consume, role, _start())) for role in (MASTER, SLAVE)]
        works.append((MASTER, self._ask))
        self._threads = [self._thread(role, work) for role, work in works]

    def start(self) -> None:
        """Begin."""
        self._sending.set()
        for thread in self._threads:
            thread.start()

    def send_no_more(self) -> None:
        """Producers are silent from now on; those who read go on."""
        self._sending.clear()

    def stop(self) -> None:
        """End all. Raises what a thread has raised."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _thread(self, role: str, work: Callable[[Link], None]) -> threading.Thread:
        def run() -> None:
            try:
                while not self._over.is_set():
                    try:
                        with self._links.connect(role, PORT) as link:
                            while not self._over.is_set():
                                work(link)
                    except OSError:  # TimeoutError and ConnectionError are such
                        self._over.wait(0.1)
            except BaseException as error:  # noqa: BLE001 - raised by stop()
                self._failures.append(error)

        return threading.Thread(target=run, daemon=True)

    # --- producing ----------------------------------------------------------------------------

    def _produce(self, producer: int, link: Link) -> None:
        """A few sends at once, and all their answers."""
        if not self._sending.wait(0.1):
            return
        chance = random.Random(f"{self._seed} {producer} {len(self.history.sends)}")
        waiting: dict[int, Sent] = {}
        for _ in range(chance.randrange(1, 6)):
            sent = self._traffic.make(producer, chance.randrange(QUEUES), chance.choice(_SIZES))
            fields = send_fields(sent.topic, sent.queue_id, sent.properties)
            waiting[link.ask(SEND, fields, sent.body)] = sent
        deadline = time.monotonic() + _ANSWER_S
        while waiting:
            for answer in link.answers(_ANSWER_S / 10):
                self._note(waiting.pop(answer.opaque), answer)
            if time.monotonic() > deadline:
                raise TimeoutError("the master does not answer")
        self._over.wait(_PAUSE_S)

    def _note(self, sent: Sent, answer: Command) -> None:
        self.answers[STORED.get(answer.code, str(answer.code))] += 1
        if answer.code == SUCCESS or answer.code in STORED:
            sent.queue_offset = int(answer.ext["queueOffset"])
            sent.log_offset = log_offset_of(answer.ext["msgId"])
            sent.at = time.monotonic()
            sent.outcome = OK
            if answer.code == SUCCESS:
                self.promised.append(sent)
        elif is_refusal(answer):
            sent.outcome = FAIL

    # --- reading ------------------------------------------------------------------------------

    def _consume(self, role: str, positions: dict[int, int], link: Link) -> None:
        for queue_id in range(QUEUES):
            answer = link.call(PULL, pull_fields(TOPIC, queue_id, positions[queue_id], 0))
            if answer.code != SUCCESS:
                continue
            for one in records_of(answer.body):
                self.history.seen.append(Seen(TOPIC, queue_id, one.queue_offset, one.body))
                self.read[role] += 1
            positions[queue_id] = int(answer.ext["nextBeginOffset"])
        self._over.wait(_PAUSE_S)

    def _ask(self, link: Link) -> None:
        """How long a question waits that has nothing to do with slaves."""
        began = time.monotonic()
        link.call(MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
        self.waited_s = max(self.waited_s, time.monotonic() - began)
        self._over.wait(_PAUSE_S)


def _start() -> dict[int, int]:
    return dict.fromkeys(range(QUEUES), 0)


def ends(links: Links, role: str) -> list[int]:
    """The end of each queue, as that broker tells it. Raises OSError."""
    with links.connect(role, PORT) as link:
        return [
            int(link.call(MAX_OFFSET, {"topic": TOPIC, "queueId": queue_id}).ext["offset"])
            for queue_id in range(QUEUES)
        ]
