"""kill -9 while transactions are prepared, decided and checked: each commit is delivered once.

The daemon is killed again and again in the middle of it, with checks going on, then let go on until
all is decided. No message is seen that was not committed, none that was is missing or comes twice:
not those whose commit was repeated because a kill took the answer, nor those that were committed in
the moment of a kill.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from aerobee.store.audit.verify import verify
from aerobee.store.inspect.report import Level
from tests import campaign
from tests.crash.daemons import settings_for, start_daemon
from tests.crash.link import SEND, SUCCESS, Link, send_fields
from tests.service.kit import Served, wait_until

TOPIC, GROUP = "Transacted", "payers"
END, CHECK, HEART_BEAT = 37, 39, 34
COMMIT, ROLLBACK = 8, 12
SETTINGS = {
    "delivery.transaction_timeout_ms": 1,
    "delivery.transaction_check_interval_ms": 100,
    # Rounds without a producer count too.
    "delivery.transaction_check_max": 100_000,
}


def start(folder: Path, store: Path, flush: str) -> Served:
    return start_daemon(folder, store, flush, more=SETTINGS).ready()


def wanted(body: bytes) -> int:
    """How the transaction of a message is to end, whoever is asked."""
    return ROLLBACK if int(body) % 3 == 0 else COMMIT


class Work:
    """What a producer did over all lives of the daemon."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.number = 0
        self.prepared: list[bytes] = []
        # Those whose answer a kill took: they may be stored or not.
        self.unsure: list[bytes] = []
        # Decisions that were sent, answered or not.
        self.sent: list[dict[str, object]] = []
        self.repeated = 0

    def until_killed(self, daemon: Served, seconds: float) -> None:
        """Prepare and decide until a timer kills the daemon; some are left undecided, some are
        decided again."""
        killer = threading.Timer(seconds, daemon.process.kill)
        killer.start()
        try:
            with Link(daemon.port) as link:
                while True:
                    self._prepare(link)
                    if self.sent and self.rng.random() < 0.2:
                        self.repeated += 1
                        self._end(link, self.rng.choice(self.sent))
        except OSError:
            killer.join()
        daemon.wait()
        daemon.close()

    def _prepare(self, link: Link) -> None:
        self.number += 1
        body = b"%06d" % self.number
        properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": f"U{self.number}"}
        fields = send_fields(TOPIC, 0, properties)
        self.unsure.append(body)
        answer = link.call(SEND, {**fields, "g": time.time_ns() // 1_000_000}, body)
        assert answer.code == SUCCESS, answer.remark
        self.prepared.append(self.unsure.pop())
        decision = {
            "producerGroup": GROUP,
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": int(answer.ext["msgId"][16:], 16),
            "commitOrRollback": wanted(body),
        }
        if self.rng.random() < 0.7:
            self.sent.append(decision)
            self._end(link, decision)

    def _end(self, link: Link, decision: dict[str, object]) -> None:
        answer = link.call(END, decision)
        assert answer.code == SUCCESS, answer.remark


def answer_checks(link: Link, timeout_s: float) -> int:
    """Decide what the daemon asks about; how many checks came."""
    checks = [one for one in link.answers(timeout_s) if not one.is_response]
    for check in checks:
        assert check.code == CHECK
        link.ask(
            END,
            {
                "producerGroup": GROUP,
                "tranStateTableOffset": check.ext["tranStateTableOffset"],
                "commitLogOffset": check.ext["commitLogOffset"],
                "commitOrRollback": wanted(b"%d" % int(check.ext["msgId"][1:])),
                "fromTransactionCheck": "true",
            },
        )
    return len(checks)


def delivered(port: int) -> list[bytes]:
    with Link(port) as link:
        return [one.body for one in link.read_queue(TOPIC, 0)[0]]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH"])
def test_each_commit_is_delivered_once_over_kills(flush: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(f"{seed} {flush}")
    store = tmp_path / "store"
    work = Work(rng)
    kills = campaign.size("kill transactions")
    for turn in range(kills):
        daemon = start(tmp_path / f"turn-{turn}", store, flush)
        work.until_killed(daemon, rng.uniform(0.5, 1.5))

    daemon = start(tmp_path / "last", store, flush)
    expected = {body for body in work.prepared if wanted(body) == COMMIT}
    with Link(daemon.port) as link:
        beat = {"clientID": "heir", "producerDataSet": [{"groupName": GROUP}]}
        link.call(HEART_BEAT, {}, json.dumps(beat).encode())
        checks = 0

        def all_are_there() -> bool:
            nonlocal checks
            checks += answer_checks(link, 0.2)
            return expected <= set(delivered(daemon.port))

        wait_until(all_are_there, "all that are committed are delivered")
        # Those that are rolled back are asked about as well; then nothing more is.
        while came := answer_checks(link, 1.0):
            checks += came
    copies = Counter(delivered(daemon.port))
    print(
        f"seed {seed}: {len(work.prepared)} prepared, {len(work.sent)} decided at once, "
        f"{work.repeated} again, {checks} checks over {kills} kills"
    )
    campaign.note("kill transactions", kills, messages=len(work.prepared), checks=checks)
    may_be = {body for body in work.unsure if wanted(body) == COMMIT}
    assert expected <= set(copies) <= expected | may_be
    assert set(copies.values()) == {1}
    daemon.terminate()
    assert daemon.wait() == 0
    daemon.close()

    findings = verify(settings_for(store, flush)).findings
    assert [one.what for one in findings if one.level is Level.DAMAGE] == []
    daemon = start(tmp_path / "after", store, flush)
    with Link(daemon.port) as link:
        beat = {"clientID": "after", "producerDataSet": [{"groupName": GROUP}]}
        link.call(HEART_BEAT, {}, json.dumps(beat).encode())
        assert answer_checks(link, 1.0) == 0  # ten times the interval
    assert Counter(delivered(daemon.port)) == copies
    daemon.terminate()
    assert daemon.wait() == 0
    daemon.close()
