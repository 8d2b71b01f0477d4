"""Starts a broker on a state of the disk, lets it go on until all is over, and judges the log.

Rules of transactions are those of `tests/crash/transactions/judge.py`. Of the rest:

    start      the broker starts
    ahead      a progress file says no more than what the log has
    back       a progress file says no less than what was saved
    lost       a message with a time of its own that was answered is delivered
    early      none before its time
    again      none that the progress calls done, and after a start each as often as it waits
    recalled   none whose recall was answered
    invented   none that nobody has sent
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.crash.judges.records import Record, read_record
from tests.crash.transactions.history import UNKNOWN, Decision, History, Transaction, number_of
from tests.crash.transactions.judge import Rules, judge, sort_out
from tests.sim.broker.life import (
    CHECKS,
    INTERVAL_MS,
    TIMEOUT_MS,
    BrokerPlan,
    BrokerRecorded,
    asked_about,
    body_of,
    cursor_in,
    progress_in,
    wish_of,
)
from tests.sim.broker.stepped import TIMED, TIMER_FILE, SteppedBroker, time_from
from tests.sim.broker.told import Told
from tests.sim.disk.crash_model import State
from tests.sim.disk.memory_files import MemoryFiles
from tests.sim.storage.checker import Fault
from tests.sim.storage.raw_store import parse_log
from tests.sim.storage.recovered import ROOT

TIMER = "rmq_sys_aerobee_timer"
_RECALL = b"-"
_STEP_MS = 1_500
_MOST_ROUNDS = 12

Decisions = dict[int, list[Decision]]


class Asked(NamedTuple):
    """The intentions of clients: `transaction` gives a transaction by its number, `timed_body` the
    body of a message with a time of its own. `rules` are the settings of the broker."""

    transaction: Callable[[int], Transaction]
    timed_body: Callable[[int], bytes]
    rules: Rules


def _transaction(number: int) -> Transaction:
    return Transaction(number, "", wish_of(number), 1, 0, body_of(number))


LIFE = Asked(_transaction, body_of, Rules(CHECKS, TIMEOUT_MS, INTERVAL_MS))


def judge_state(
    plan: BrokerPlan, recorded: BrokerRecorded, place: int, state: State, *, killed: bool
) -> list[Fault]:
    """Everything that is wrong with what a broker makes of that state."""
    told = recorded.life.told(place, killed=killed)
    boot = recorded.boot if killed else recorded.boot + ", over"
    files = MemoryFiles(ROOT, state, boot)
    random.seed(f"{place}")  # the timer leaves moments to chance
    time = time_from(recorded.life.now_at(place) + 1.0)

    def start() -> SteppedBroker:
        return SteppedBroker(plan.store_settings(), files, time)

    return judge_broker(start, files.image, told, LIFE)


def judge_broker(
    start: Callable[[], SteppedBroker], image: Callable[[], State], told: Told, asked: Asked
) -> list[Fault]:
    """Everything that is wrong with the broker that `start` starts; `image` is its disk's state."""
    try:
        broker = start()
    except Exception as error:  # noqa: BLE001 - whatever it is, the broker did not start
        return [Fault("start", f"{error!r}")]
    try:
        found, begin = image(), broker.store.written
        decisions = _go_on(broker, told, asked)
        closed = broker.close()
        log = records_of(image())
    finally:
        broker.store.abandon()
    faults = [Fault(*one) for one in judge(history_of(told, decisions, asked), log, asked.rules)]
    faults += _progress(found, records_of(found), told)
    faults += _timed(found, log, begin, told, asked)
    return faults if closed else [*faults, Fault("start", "it does not close clean")]


def records_of(image: State) -> list[Record]:
    """The log's records in order."""
    return [read_record(one.data, 0) for one in parse_log(image, ROOT).records]


def _go_on(broker: SteppedBroker, told: Told, asked: Asked) -> Decisions:
    """Until nothing is undecided and nothing waits; what was decided at checks."""
    decisions: Decisions = defaultdict(list)
    broker.connect(is_there=True)
    for _ in range(_MOST_ROUNDS):
        broker.pass_ms(asked.rules.interval_ms)
        for check in broker.check():
            number, half = asked_about(check)
            wish = asked.transaction(number).wish
            if wish != UNKNOWN:
                code = 0 if broker.end(half, wish) else 1
                decisions[number].append(Decision(wish, 1, code=code))
        broker.sync()
        broker.save()
        if not broker.transactions.pending:
            break
    _deliver_all(broker, told)
    return decisions


def _deliver_all(broker: SteppedBroker, told: Told) -> None:
    """Until all that waits has come. What is rolled late waits for a sync, and others for it."""
    last_ms = max(
        (int(fact.value) for facts in told.of("timed").values() for fact in facts),  # type: ignore[call-overload]
        default=0,
    )
    written = -1
    while broker.time.now_ms() <= last_ms or broker.store.written != written:
        written = broker.store.written
        broker.pass_ms(_STEP_MS)
        broker.sync()


def history_of(told: Told, later: Decisions, asked: Asked) -> History:
    """The requests of producers with their answers, as the judge of transactions takes them."""
    history = History(0, asked.rules.checks, 1)
    decided = told.of("decided")
    for number, facts in told.of("prepared").items():
        one = asked.transaction(number)
        if facts[-1].done:
            one.half = facts[-1].value  # type: ignore[assignment]
        for fact in decided.get(number, []):
            code = 0 if fact.done else None
            one.decisions.append(Decision(int(fact.value), 0, code=code))  # type: ignore[call-overload]
        one.decisions += later[number]
        history.transactions.append(one)
    return history


# --- progress -------------------------------------------------------------------------------------


def _progress(found: State, log: list[Record], told: Told) -> Iterator[Fault]:
    """The faults of the files of progress, as a start found them."""
    progress, cursor = progress_in(found), cursor_in(found)
    saved, saved_cursor = told.last_done("progress"), told.last_done("cursor")
    if saved is not None and (progress is None or progress < saved):  # type: ignore[operator]
        yield Fault("back", f"transactions had come to {saved}, the file says {progress}")
    if saved_cursor is not None and (cursor is None or cursor < saved_cursor):  # type: ignore[operator]
        yield Fault("back", f"the timer had come to {saved_cursor}, the file says {cursor}")
    if progress is not None:
        yield from _half_ahead(progress[0], log)
    if cursor is not None:
        for number, waiting in _last_waiting(log).items():
            is_done = _is_done(found, waiting)
            if is_done and not _delivered(log, number) and not told.facts.get(("recalled", number)):
                yield Fault("ahead", f"{cursor} is called done, message {number} is not delivered")


def _half_ahead(progress: int, log: list[Record]) -> Iterator[Fault]:
    for number, kept in sort_out(log).items():
        if kept.halves and not kept.ops and not kept.finals:
            newest = kept.halves[-1].queue_offset
            if newest < progress:
                yield Fault("ahead", f"{progress} is passed, {number} is undecided at {newest}")


def _is_done(found: State, waiting: Record) -> bool:
    """Whether the timer's file calls that record done."""
    text = found.get(TIMER_FILE)
    if text is None:
        return False
    table = json.loads(text)
    one = (int(waiting.property("TIMER_OUT_MS")), waiting.log_offset)
    if one <= (table["actionMs"], table["logOffset"]):
        return True
    return any(
        waiting.log_offset < past["below"] and one <= (past["actionMs"], past["logOffset"])
        for past in table["pasts"]
    )


# --- messages with a time of their own -----------------------------------------------------------


def _last_waiting(log: list[Record]) -> dict[int, Record]:
    """The newest waiting record of each message, by its number."""
    return {number_of(one.body): one for one in log if _waits(one)}


def _waits(one: Record) -> bool:
    return one.topic == TIMER and one.body != _RECALL


def _comes(one: Record) -> bool:
    return one.topic == TIMED and one.body != _RECALL


def _delivered(log: list[Record], number: int) -> list[Record]:
    return [one for one in log if _comes(one) and number_of(one.body) == number]


def _timed(
    found: State, log: list[Record], begin: int, told: Told, asked: Asked
) -> Iterator[Fault]:
    times, recalls = told.of("timed"), told.of("recalled")
    if any(one.topic == TIMED and not _comes(one) for one in log):
        yield Fault("invented", "a recall is delivered")
    for number, facts in times.items():
        delivered = _delivered(log, number)
        if any(one.store_ms < int(facts[0].value) for one in delivered):  # type: ignore[call-overload]
            yield Fault("early", f"message {number} is delivered before {facts[0].value}")
        if any(fact.done for fact in facts) and not delivered and number not in recalls:
            yield Fault("lost", f"message {number} was answered and is not delivered")
        if delivered and any(fact.done for fact in recalls.get(number, [])):
            yield Fault("recalled", f"message {number} is delivered")
        if any(one.body != asked.timed_body(number) for one in delivered):
            yield Fault("invented", f"message {number} has another body")
    # A kill shortly after one was rolled leaves both; each of them comes.
    open_ones = Counter(
        number_of(one.body)
        for one in log
        if _waits(one) and one.log_offset < begin and not _is_done(found, one)
    )
    after = Counter(number_of(one.body) for one in log if _comes(one) and one.log_offset >= begin)
    for number, count in after.items():
        if count > open_ones[number]:
            text = f"{number} comes {count} times after a start, {open_ones[number]} waited"
            yield Fault("again", f"message {text}")
        if number not in times:
            yield Fault("invented", f"message {number} was never sent")
