"""kill -9 while transactions are prepared, decided and checked: each commit is delivered once.

Producers of one group decide at once, at a check, never, twice, the other way round, for each other
(`transactions/history.py`), and a consumer reads along, while the daemon is killed again and again:
in the middle of it, and while it only asks. Then it goes on until all is over. The log itself is
the judge (`transactions/judge.py`): nothing is visible that was not committed, each commit is
delivered once, each decision stays, and producers were asked as often as the settings say.

Controls: daemons that break one rule of transactions each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.inspect.audit_report import Level
from tests import campaign
from tests.crash.judges.checker import Violation
from tests.crash.judges.records import Record, read_log
from tests.crash.running.daemons import settings_for, start_daemon
from tests.crash.running.link import Link
from tests.crash.transactions.clients import END, PRODUCERS, Clients
from tests.crash.transactions.history import COMMIT, GROUP, QUEUES, TOPIC, History
from tests.crash.transactions.judge import Rules, aside, figures, judge
from tests.service.kit import Served, metric, wait_until

RULES = Rules(checks=4, timeout_ms=300, interval_ms=200)
SETTINGS = {
    "delivery.transaction_timeout_ms": RULES.timeout_ms,
    "delivery.transaction_check_interval_ms": RULES.interval_ms,
    "delivery.transaction_check_max": RULES.checks,
    "store.commit_log_segment_bytes": 1 << 20,
}
#: One kill in this number comes when nothing new is prepared any more.
_WHILE_ASKING = 4
#: Transactions that may be begun after the preparation that brings the kill.
_BEHIND = 40
_LATE = 20
_SHOWN = 20


class Run:
    """The lives of daemons on one store, and their clients."""

    def __init__(self, folder: Path, flush: str, seed: int, control: str = "") -> None:
        self.history = History(seed, RULES.checks, PRODUCERS)
        self.store = folder / "store"
        self._folder = folder
        self._flush = flush
        self._control = control
        self._clients = Clients(self.history)
        self._lives = count(1)

    @contextmanager
    def daemon(self) -> Iterator[Served]:
        """One life."""
        place = self._folder / f"life-{next(self._lives)}"
        daemon = start_daemon(place, self.store, self._flush, self._control, SETTINGS)
        try:
            yield daemon.ready()
        finally:
            daemon.close()

    def killed(self, prepared: int) -> None:
        """A life that is killed when `prepared` transactions are prepared, or, if they are already,
        when somebody is asked."""
        history = self.history
        with self.daemon() as daemon:
            if not history.transactions:
                with Link(daemon.port) as link:
                    link.create_topic(TOPIC, QUEUES)
            history.goal = max(history.goal, prepared + _BEHIND)
            asked = history.asked
            with self._clients.at_work(daemon.port):
                if history.prepared < prepared:
                    history.wait_prepared(prepared)
                else:
                    # All may have been put aside before the first producer was there.
                    wait_until(
                        lambda: history.asked > asked or not self._pending(daemon),
                        "somebody is asked",
                    )
                daemon.process.kill()
                daemon.wait()

    def last(self, transactions: int) -> None:
        """A life that goes on until all transactions are over, and is stopped in order."""
        history = self.history
        history.goal = max(history.goal, transactions)
        first = len(history.transactions)
        with self.daemon() as daemon:

            def is_over() -> bool:
                begun = history.transactions
                known = len(begun) >= history.goal and all(
                    one.half or one.refused for one in begun[first:]
                )
                return known and self._pending(daemon) == 0

            with self._clients.at_work(daemon.port):
                wait_until(is_over, "no transaction is undecided", 240)
            daemon.terminate()
            assert daemon.wait() == 0

    def late(self) -> None:
        """A life in which what was put aside is committed, and then nobody is asked any more."""
        with self.daemon() as daemon:
            assert self._pending(daemon) == 0
            with Link(daemon.port) as link:
                for one in aside(self.history, self.records())[:_LATE]:
                    if one.half is not None:
                        decision = self.history.decides(one, COMMIT)
                        fields = {
                            "producerGroup": GROUP, "tranStateTableOffset": one.half[0],
                            "commitLogOffset": one.half[1], "commitOrRollback": COMMIT,
                        }  # fmt: skip
                        decision.code = link.call(END, fields).code
            rounds = "aerobee_transaction_check_rounds_total"
            before = metric(daemon, rounds)
            wait_until(lambda: metric(daemon, rounds) > before + 1, "two rounds of checks")
            daemon.terminate()
            assert daemon.wait() == 0

    def records(self) -> list[Record]:
        return read_log(self.store / "commitlog").records

    def wrong(self) -> list[Violation]:
        """The violations that the log shows."""
        return judge(self.history, self.records(), RULES)

    @staticmethod
    def _pending(daemon: Served) -> float:
        return metric(daemon, "aerobee_transactions_pending")


def kills_of(rng: random.Random, transactions: int, kills: int) -> list[int]:
    """Numbers of prepared transactions at which the daemon is killed; the last kills come when all
    are prepared."""
    while_asking = max(1, kills // _WHILE_ASKING)
    drawn = rng.sample(range(1, transactions - _BEHIND), kills - while_asking)
    return [*sorted(drawn), *[0] * while_asking]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_each_commit_is_delivered_once_over_kills(flush: str, tmp_path: Path, seed: int) -> None:
    transactions = campaign.size("kill transactions")
    kills = 10 if campaign.is_full() else 3
    run = Run(tmp_path, flush, seed)
    for prepared in kills_of(random.Random(f"{seed} {flush}"), transactions, kills):
        run.killed(prepared)
    run.last(transactions)
    run.late()
    wrong, records = run.wrong(), run.records()
    found = figures(run.history, records)
    print(f"seed {seed}: {len(run.history.transactions)} transactions, {kills} kills, {found}")
    campaign.note(
        "kill transactions", len(run.history.transactions), wrong=len(wrong), kills=kills, **found
    )
    assert not wrong, f"seed {seed}: {len(wrong)} wrong, {wrong[:_SHOWN]}"
    findings = verify(settings_for(run.store, flush)).findings
    assert [one.what for one in findings if one.level is Level.DAMAGE] == []


#: The fault in the daemon, and the rule by which it is found out.
CONTROLS = {
    "op-messages-forgotten": {"once", "over"},
    "half-messages-visible": {"visible"},
    "transactions-forgotten": {"over"},
    "checks-counted-twice": {"counted"},
    "decisions-overruled": {"overruled"},
    "commit-forgotten": {"delivered"},
}


@pytest.mark.parametrize("control", CONTROLS)
def test_broken_transactions_are_found_out(control: str, tmp_path: Path, seed: int) -> None:
    run = Run(tmp_path, "ASYNC_FLUSH", seed, control)
    run.killed(80)
    run.last(100)
    wrong = run.wrong()
    rules = {one.rule for one in wrong}
    print(f"control {control}: {len(wrong)} wrong, {sorted(rules)}")
    caught = bool(rules & CONTROLS[control])
    campaign.note_control("kill transactions", control, int(caught), 1)
    assert caught, f"seed {seed}: {sorted(rules)}"
