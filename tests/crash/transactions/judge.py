"""Whether a log agrees with what producers and a consumer were told (docs/reliability.md I12).

Reads the records of the log alone, in their order, when all transactions are over: the contents of
the half queue, the op queue and the topics follow from it. Rules, one word each:

    half       an answered half message is in the log, as it was sent
    visible    nothing was delivered, or seen, without a commit that somebody had sent before
    once       no message was delivered twice
    delivered  an answered commit was delivered
    overruled  an answered decision stays: the other one is refused
    refused    a decision that is right is not refused
    over       every transaction is delivered, rolled back or put aside, and noted in the op queue
    asked      nobody is asked about what is decided
    counted    producers are asked at the intervals of the settings, once a count, and no message is
               put aside before it was asked about as often as the settings say
    seen       a place that a consumer saw holds what it saw
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash.judges.checker import Violation
from tests.crash.judges.records import Record
from tests.crash.transactions.history import (
    COMMIT,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    History,
    Transaction,
    number_of,
)

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ASIDE = "TRANS_CHECK_MAX_TIME_TOPIC"
_TRANSACTION_MASK = 12  # of the sysFlag
#: Rounds go by the monotonic clock and store times by the wall clock, in whole milliseconds.
_CLOCKS_MS = 20


class Rules(NamedTuple):
    """The settings of the daemon."""

    checks: int
    timeout_ms: int
    interval_ms: int


@dataclass(slots=True)
class Kept:
    """The records of one transaction in the log, in its order."""

    halves: list[Record] = field(default_factory=list)
    finals: list[Record] = field(default_factory=list)
    asides: list[Record] = field(default_factory=list)
    ops: list[Record] = field(default_factory=list)

    @property
    def copies(self) -> list[Record]:
        """The half messages that were stored for a check."""
        return [one for one in self.halves if times_of(one)]


def times_of(record: Record) -> int:
    """How often producers were asked about it by then."""
    return int(record.property("TRANSACTION_CHECK_TIMES") or 0)


def sort_out(records: Iterable[Record]) -> dict[int, Kept]:
    """The records of each transaction by its number."""
    kept: dict[int, Kept] = defaultdict(Kept)
    owner: dict[int, int] = {}
    for one in records:
        if one.topic == OP:
            for number in {owner[int(part)] for part in one.body.split(b",") if int(part) in owner}:
                kept[number].ops.append(one)
        elif one.topic == HALF:
            owner[one.queue_offset] = number_of(one.body)
            kept[number_of(one.body)].halves.append(one)
        elif one.topic == ASIDE:
            kept[number_of(one.body)].asides.append(one)
        elif one.topic == TOPIC:
            kept[number_of(one.body)].finals.append(one)
    return kept


def judge(history: History, records: list[Record], rules: Rules) -> list[Violation]:
    """Everything that is wrong."""
    kept = sort_out(records)
    wrong = list(_seen(history, records))
    for one in history.transactions:
        has = kept[one.number]
        for judged in (_half, _delivered, _answers, _over, _asked):
            wrong += [Violation(rule, f"{_name(one)} {text}") for rule, text in judged(one, has)]
        wrong += [Violation("counted", f"{_name(one)} {text}") for text in _counted(has, rules)]
    return wrong


def _name(one: Transaction) -> str:
    return f"transaction {one.number} ({one.kind})"


Finding = tuple[str, str]


def _half(one: Transaction, has: Kept) -> Iterator[Finding]:
    if one.half is not None:
        places = {(record.queue_offset, record.log_offset) for record in has.halves}
        if one.half not in places:
            yield "half", f"was prepared at {one.half}, the log has {sorted(places)}"
    for record in (*has.halves, *has.finals, *has.asides):
        if record.body != one.body:
            yield "half", f"has another body at {record.log_offset}"


def _delivered(one: Transaction, has: Kept) -> Iterator[Finding]:
    for record in has.finals:
        if record.flags & _TRANSACTION_MASK != COMMIT:
            yield "visible", f"is delivered at {record.log_offset} and not marked as committed"
        if not one.sent(COMMIT):
            yield "visible", f"is delivered at {record.log_offset}, nobody has committed it"
        if record.queue_id != one.queue_id:
            yield "delivered", f"went to queue {record.queue_id}, not {one.queue_id}"
    if len(has.finals) > 1:
        yield "once", f"is delivered at {[record.log_offset for record in has.finals]}"
    if one.done(COMMIT) and not has.finals:
        yield "delivered", "was committed, which was answered, and is not delivered"


def _answers(one: Transaction, has: Kept) -> Iterator[Finding]:
    done = [decision for decision in one.decisions if decision.is_done]
    if len({decision.what for decision in done}) > 1:
        yield "overruled", f"was decided {[decision.what for decision in done]}"
    if one.done(ROLLBACK) and has.finals:
        yield "overruled", "was rolled back, which was answered, and is delivered"
    for decision in one.decisions:
        if not decision.contrary and decision.code is not None and not decision.is_done:
            yield "refused", f"was not decided {decision.what}: code {decision.code}"


def _over(one: Transaction, has: Kept) -> Iterator[Finding]:
    if not has.halves:
        return
    is_rolled_back = bool(has.ops) and one.sent(ROLLBACK)
    if not has.finals and not has.asides and not is_rolled_back:
        yield "over", f"is neither delivered nor rolled back nor put aside, {len(has.ops)} ops"
    newest = has.halves[-1].queue_offset
    if newest not in {int(part) for op in has.ops for part in op.body.split(b",")}:
        yield "over", f"has no op message for its newest half message {newest}"


def _asked(one: Transaction, has: Kept) -> Iterator[Finding]:
    decided = min((record.log_offset for record in (*has.ops, *has.finals)), default=None)
    late = [
        record.log_offset
        for record in has.halves
        if decided is not None and record.log_offset > decided
    ]
    if late:
        yield "asked", f"was decided at {decided} and stored for a check at {late}"
    settled = one.settled_in
    if settled is not None:
        lives = [check.life for check in one.checks if check.life > settled]
        if lives:
            yield "asked", f"was decided in life {settled} and asked about in {lives}"
    copies = {(times_of(record), record.log_offset) for record in has.copies}
    for check, count in Counter((check.times, check.log_offset) for check in one.checks).items():
        if check not in copies:
            yield "asked", f"was asked about for the time {check}, the log has {sorted(copies)}"
        if count > 1:
            yield "asked", f"was asked about {count} times as {check}"


def _counted(has: Kept, rules: Rules) -> Iterator[str]:
    copies = has.copies
    times = [times_of(record) for record in copies]
    if times != list(range(1, len(times) + 1)) or len(times) > rules.checks:
        yield f"was asked about as {times}, {rules.checks} checks are set"
    if len(has.asides) > 1:
        yield f"was put aside {len(has.asides)} times"
    for record in has.asides:
        if times_of(record) != rules.checks or len(times) != rules.checks:
            yield f"was put aside as {times_of(record)} after {times}, {rules.checks} are set"
    before = None
    for record in copies:
        if record.store_ms < record.born_ms + rules.timeout_ms - _CLOCKS_MS:
            yield f"was asked about {record.store_ms - record.born_ms} ms after its birth"
        if before is not None and record.store_ms < before + rules.interval_ms - _CLOCKS_MS:
            yield f"was asked about again after {record.store_ms - before} ms"
        before = record.store_ms


def _seen(history: History, records: list[Record]) -> Iterator[Violation]:
    there = {(one.queue_id, one.queue_offset): one.body for one in records if one.topic == TOPIC}
    for seen in history.seen:
        where = f"{seen.queue_id}/{seen.queue_offset}"
        if not seen.committed:
            number = number_of(seen.body)
            yield Violation("visible", f"transaction {number} was seen at {where} undecided")
        if there.get((seen.queue_id, seen.queue_offset)) != seen.body:
            yield Violation("seen", f"{where} holds another message than was seen there")


def aside(history: History, records: list[Record]) -> list[Transaction]:
    """The transactions that nobody would decide, and that were put aside."""
    kept = sort_out(records)
    return [one for one in history.transactions if one.wish == UNKNOWN and kept[one.number].asides]


def figures(history: History, records: list[Record]) -> dict[str, int]:
    """For docs/reliability.md."""
    kept = sort_out(records).values()
    return {
        "delivered": sum(len(one.finals) for one in kept),
        "put_aside": sum(len(one.asides) for one in kept),
        "checks": sum(len(one.copies) for one in kept),
        "of_them_answered_to": history.asked,
        "decisions_repeated_or_contrary": history.repeated,
    }
