"""Producers of one group and a consumer, who write down in a `History` what they are told.

Each lives until its connection ends, or it is told to. Producers have many requests under way at a
time, so that a kill meets transactions at every step.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from aerobee.protocol.frames.command import Command
from tests.crash.judges.records import records_of
from tests.crash.running.link import PULL, SEND, SUCCESS, Link, pull_fields, send_fields
from tests.crash.transactions.history import (
    COMMIT,
    GROUP,
    QUEUES,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    Check,
    History,
    Transaction,
    number_of,
)

END, CHECK, HEART_BEAT = 37, 39, 34
PRODUCERS = 2
_PREPARED = 4  # of the sysFlag
_UNDER_WAY = 16
_LOOK_S = 0.02
_HOLD_MS = 5_000
#: How often a transaction is followed by the repetition of an earlier one's decision.
_REPEATED = 0.1
#: How often the answer to a check names the first half message, and not the copy it was asked of.
_FIRST = 0.3


class Producer:
    """One connection's; others decide what it has left to them."""

    def __init__(self, history: History, number: int, link: Link) -> None:
        self._history = history
        self._number = number
        self._link = link
        self._rng = random.Random(f"producer {number} {history.life}")
        self._waiting: dict[int, Callable[[Command], None]] = {}

    def run(self, done: threading.Event) -> None:
        """Prepare and decide. Raises ConnectionError when the daemon has gone."""
        beat = {
            "clientID": f"producer-{self._number}-{self._history.life}",
            "producerDataSet": [{"groupName": GROUP}],
        }
        self._link.call(HEART_BEAT, {}, json.dumps(beat).encode())
        while not done.is_set():
            while len(self._waiting) < _UNDER_WAY and self._do_something():
                pass
            for command in self._link.answers(_LOOK_S):
                if command.is_response:
                    self._waiting.pop(command.opaque)(command)
                else:
                    self._asked(command)

    def _do_something(self) -> bool:
        """False when there is nothing to be done."""
        left = self._history.left_to(self._number)
        if left is not None and left.half is not None:
            self.decide(left, left.wish, left.half)
            return True
        one = self._history.begin()
        if one is None:
            return False
        properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"U{one.number}"}
        fields = send_fields(TOPIC, one.queue_id, properties)
        fields |= {"f": _PREPARED, "g": time.time_ns() // 1_000_000}
        self._waiting[self._link.ask(SEND, fields, one.body)] = partial(self._prepared, one)
        return True

    def _prepared(self, one: Transaction, answer: Command) -> None:
        if answer.code != SUCCESS:
            self._history.was_refused(one)  # it may be stored or not
            return
        half = int(answer.ext["queueOffset"]), int(answer.ext["msgId"][16:], 16)
        self._history.was_prepared(one, *half)
        if one.kind in ("at a check", "never"):
            self._say(UNKNOWN, half)
        elif one.kind == "by another":
            self._history.leave_to((self._number + 1) % PRODUCERS, one)
        elif one.kind in ("at once", "twice", "contrary"):
            self.decide(one, one.wish, half)
        if self._rng.random() < _REPEATED:
            earlier = self._history.earlier(self._rng)
            if earlier is not None and earlier.half is not None:
                self.decide(earlier, earlier.wish, earlier.half)

    def decide(
        self,
        one: Transaction,
        what: int,
        half: tuple[int, int],
        *,
        contrary: bool = False,
        check: bool = False,
    ) -> None:
        """Send a decision."""
        decision = self._history.decides(one, what, contrary=contrary)
        is_first = len(one.decisions) == 1

        def answered(answer: Command) -> None:
            self._history.answered(decision, answer.code)
            if not is_first or not decision.is_done or one.half is None:
                return
            if one.kind == "twice":
                self.decide(one, what, one.half)
            elif one.kind == "contrary":
                other = ROLLBACK if what == COMMIT else COMMIT
                self.decide(one, other, one.half, contrary=True)

        self._waiting[self._say(what, half, check=check)] = answered

    def _say(self, what: int, half: tuple[int, int], *, check: bool = False) -> int:
        """One END_TRANSACTION; nobody answers it if it says that the decision is not known."""
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": half[0],
            "commitLogOffset": half[1],
            "commitOrRollback": what,
            "fromTransactionCheck": "true" if check else "false",
        }
        return self._link.ask(END, fields)

    def _asked(self, command: Command) -> None:
        assert command.code == CHECK
        half = int(command.ext["tranStateTableOffset"]), int(command.ext["commitLogOffset"])
        (record,) = records_of(command.body)
        times = int(record.property("TRANSACTION_CHECK_TIMES") or 0)
        check = Check(self._history.life, times, half[1])
        one = self._history.was_asked(number_of(record.body), check)
        if one.wish == UNKNOWN:
            if one.kind == "never":
                self._say(UNKNOWN, half, check=True)
            return
        if one.kind.startswith("at a check") and times < one.at_check:
            self._say(UNKNOWN, half, check=True)
            return
        if one.half is not None and self._rng.random() < _FIRST:
            half = one.half
        self.decide(one, one.wish, half, check=True)


class Consumer:
    """Reads all queues, over all lives."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._positions = dict.fromkeys(range(QUEUES), 0)

    def run(self, link: Link, done: threading.Event) -> None:
        """Read on. Raises ConnectionError when the daemon has gone."""
        held = {self._pull(link, queue_id): queue_id for queue_id in range(QUEUES)}
        while not done.is_set():
            for answer in link.answers(_LOOK_S):
                queue_id = held.pop(answer.opaque)
                if answer.code == SUCCESS:
                    for record in records_of(answer.body):
                        self._history.saw(queue_id, record.queue_offset, record.body)
                    self._positions[queue_id] = int(answer.ext["nextBeginOffset"])
                held[self._pull(link, queue_id)] = queue_id

    def _pull(self, link: Link, queue_id: int) -> int:
        fields = pull_fields(TOPIC, queue_id, self._positions[queue_id], _HOLD_MS)
        return link.ask(PULL, fields)


class Clients:
    """All clients of one history; `at_work` is one life's."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._consumer = Consumer(history)
        self._failures: list[BaseException] = []

    @contextmanager
    def at_work(self, port: int) -> Iterator[None]:
        """They are connected and work, until the block ends or the daemon is gone."""
        self._history.life += 1
        done = threading.Event()
        threads = [
            threading.Thread(target=self._guarded, args=(port, done, partial(self._produce, n)))
            for n in range(PRODUCERS)
        ]
        threads.append(threading.Thread(target=self._guarded, args=(port, done, self._consume)))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            done.set()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _produce(self, number: int, link: Link, done: threading.Event) -> None:
        Producer(self._history, number, link).run(done)

    def _consume(self, link: Link, done: threading.Event) -> None:
        self._consumer.run(link, done)

    def _guarded(
        self, port: int, done: threading.Event, work: Callable[[Link, threading.Event], None]
    ) -> None:
        try:
            with suppress(ConnectionError), Link(port) as link:  # the daemon was killed
                work(link, done)
        except BaseException as error:  # noqa: BLE001 - raised by at_work()
            self._failures.append(error)
