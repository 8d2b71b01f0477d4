"""Rules of transactions and the timer, taken away one at a time: the broker model has to notice.

As in `tests/sim/storage/controls.py`: what is broken is replaced by the test; the product knows
nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from aerobee.broker.delay.delivery_progress import TimerProgress
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.transactions import transaction_log
from aerobee.broker.transactions.check_back import CheckService
from aerobee.broker.transactions.forms import Half
from aerobee.broker.transactions.transaction_log import TransactionLog
from aerobee.broker.transactions.transaction_table import TransactionTable
from aerobee.protocol.headers.transactions import COMMIT
from tests.sim.broker.life import BrokerPlan
from tests.sim.broker.plans import plan_named
from tests.sim.broker.stepped import StateOnDisk


@dataclass(frozen=True)
class BrokerControl:
    """A rule taken away, the life that shows it, and what has to be reported."""

    name: str
    plan: BrokerPlan
    caught_by: frozenset[str]
    break_rule: Callable[[pytest.MonkeyPatch], None]
    states: int = 400


def _progress_at_once(patch: pytest.MonkeyPatch) -> None:
    """Progress is committed before the records that it rests on are durable, as in RocketMQ."""

    def save(service: CheckService) -> None:
        service._commit(*service._table.progress())

    patch.setattr(CheckService, "save_progress", save)


def _op_before_final(patch: pytest.MonkeyPatch) -> None:
    commit = TransactionLog.commit

    def other_way_round(log: TransactionLog, half: Half, pending_at: int | None) -> Any:
        owed: list[Any] = []
        put, log._store.log.put = log._store.log.put, owed.append  # type: ignore[method-assign, assignment]
        log._put_op(transaction_log._Op(half.message.queue_offset, half.origin, COMMIT))
        log._store.log.put = put  # type: ignore[method-assign]
        put(owed[0])
        return commit(log, half, pending_at)

    patch.setattr(TransactionLog, "commit", other_way_round)


def _delivered_ones_not_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionLog, "_find_delivered", lambda _: None)


def _copies_alone(patch: pytest.MonkeyPatch) -> None:
    """An op message decides no more than what it names."""
    patch.setattr(transaction_log, "decided_origin", lambda _: None)


def _undecided_passed(patch: pytest.MonkeyPatch) -> None:
    """Progress goes to the end of the half queue."""
    progress = TransactionTable.progress
    patch.setattr(TransactionTable, "progress", lambda table: (table.end, progress(table)[1]))


def _timer_file_ahead(patch: pytest.MonkeyPatch) -> None:
    """The timer's file says what is done, durable or not."""
    init = TimerProgress.__init__

    def without_waiting(progress: TimerProgress, file: Any, *_: Any) -> None:
        init(progress, file, lambda: 1 << 62)

    patch.setattr(TimerProgress, "__init__", without_waiting)


def _timer_forgets(patch: pytest.MonkeyPatch) -> None:
    """Each start of the timer takes what waits for done."""
    begin = TimerService._begin

    def at_the_clock(timer: TimerService) -> None:
        done = timer._progress.done
        timer._progress.moved(done.at(done.cursor._replace(action_ms=timer._clock_ms())))
        begin(timer)

    patch.setattr(TimerService, "_begin", at_the_clock)


def _delivered_early(patch: pytest.MonkeyPatch) -> None:
    """A message that has to be rolled is delivered."""
    patch.setattr(TimerService, "_roll", lambda timer, message, *_: timer._put_due(message))


def _overtaken(patch: pytest.MonkeyPatch) -> None:
    """The timer asks once up to when it may deliver, not again after it has rolled a message."""
    deliver, until_ms = TimerService._deliver, TimerService._until_ms

    def deliver_up_to(timer: TimerService, now_ms: int) -> None:
        until = until_ms(timer, now_ms)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(TimerService, "_until_ms", lambda *_: until)
            deliver(timer, now_ms)

    patch.setattr(TimerService, "_deliver", deliver_up_to)


def _recalls_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerService, "_recalls_of", lambda *_: set())


def _renamed_unsynced(patch: pytest.MonkeyPatch) -> None:
    """A file of progress takes its name without its content."""
    save = StateOnDisk.save

    def without_sync(file: StateOnDisk, text: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(file._files, "sync", lambda _fd: None)
            save(file, text)

    patch.setattr(StateOnDisk, "save", without_sync)


SYNC, ASYNC = plan_named("broker-sync"), plan_named("broker-async")
SYNC_LIVES, ASYNC_LIVES = plan_named("broker-sync-lives"), plan_named("broker-async-lives")
#: Decisions and checks come often, so that a crash often falls between two records of a decision.
_DECIDING = {"prepare": 12, "decide": 14, "round": 4, "sync": 3, "check": 3, "save": 3}
DECIDING = replace(ASYNC, weights=_DECIDING)
_TIMED = {"timed": 8, "recall": 2, "wait": 6, "leap": 1, "sync": 4, "save": 4, "kill": 1}
TIMED_ONES = replace(ASYNC, weights=_TIMED)

CONTROLS = [
    BrokerControl(
        "progress of transactions ahead of its sync",
        replace(DECIDING, weights=_DECIDING | {"check": 8, "save": 8, "sync": 1}),
        frozenset({"ahead", "over"}),
        _progress_at_once,
    ),
    BrokerControl(
        "op message before its final", DECIDING, frozenset({"delivered", "over"}), _op_before_final
    ),
    BrokerControl(
        "finals without op messages not found", DECIDING, frozenset({"once"}),
        _delivered_ones_not_found,
    ),
    BrokerControl(
        "op messages of copies name the copy alone",
        replace(SYNC_LIVES, weights=_DECIDING | {"kill": 2}),
        frozenset({"asked"}),
        _copies_alone,
    ),
    BrokerControl(
        "progress passes what is undecided", SYNC, frozenset({"ahead", "over"}), _undecided_passed
    ),
    BrokerControl(
        "timerProgress.json ahead of its sync", TIMED_ONES, frozenset({"ahead", "lost"}),
        _timer_file_ahead,
    ),
    BrokerControl("a start forgets what waits", TIMED_ONES, frozenset({"lost"}), _timer_forgets),
    BrokerControl("rolled messages come early", TIMED_ONES, frozenset({"early"}), _delivered_early),
    BrokerControl(
        "what is rolled late is overtaken",
        replace(ASYNC, weights={"timed": 12, "leap": 3, "wait": 1, "sync": 4, "save": 4}),
        frozenset({"lost"}),
        _overtaken,
    ),
    BrokerControl("recalls are forgotten", TIMED_ONES, frozenset({"recalled"}), _recalls_forgotten),
    BrokerControl(
        "progress renamed before its sync", SYNC, frozenset({"start", "back", "again"}),
        _renamed_unsynced,
    ),
]  # fmt: skip
