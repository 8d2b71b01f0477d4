"""Syncs that take long: acknowledgements are late and true, and nobody else waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import campaign
from tests.crash.disks.slow_disk import FLUSH_DISK_TIMEOUT, Outcome, judge, run
from tests.crash.judges.checker import check
from tests.crash.judges.history import Promise
from tests.crash.judges.restarted import served
from tests.crash.running.daemons import start_daemon
from tests.crash.running.link import SUCCESS
from tests.tools import need

#: One may have begun before the request and end with it; a client that is served meanwhile has
#: more.
_LEAST_ROUNDS = 2
_TRIES = 5


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("strace")


def sends() -> int:
    return campaign.size("slow disk")


def slow_s() -> float:
    """A slow sync: long enough for others to be served several times on a busy machine."""
    return 2.0 if campaign.is_full() else 1.5


def lost(folder: Path, store: Path, outcome: Outcome) -> list[str]:
    """The faults of the store after the kill that ends each scenario."""
    again = start_daemon(folder / "again", store, "SYNC_FLUSH")
    try:
        again.ready()
        found = served(again.port, store)
    finally:
        again.close()
    return [f"{one.rule} {one.text}" for one in check(outcome.history, found, Promise())]


def test_syncs_of_50_ms_make_acknowledgements_late(folder: Path) -> None:
    outcome = run(folder / "first", folder / "store", "SYNC_FLUSH", 0.05, 3 * sends())
    wrong = judge(outcome, code=SUCCESS, least_s=0.05, meanwhile=0)
    rounds = sum(one.meanwhile for one in outcome.heard)
    campaign.note("slow disk", len(outcome.heard), wrong=len(wrong), rounds_of_others=rounds)
    assert wrong == []
    assert rounds
    assert lost(folder, folder / "store", outcome) == []


def test_slow_syncs_make_acknowledgements_late_and_nobody_else_wait(folder: Path) -> None:
    outcome = run(folder / "first", folder / "store", "SYNC_FLUSH", slow_s(), sends())
    wrong = judge(outcome, code=SUCCESS, least_s=slow_s(), meanwhile=_LEAST_ROUNDS)
    rounds = sum(one.meanwhile for one in outcome.heard)
    campaign.note("slow disk", len(outcome.heard), wrong=len(wrong), rounds_of_others=rounds)
    assert wrong == []
    assert lost(folder, folder / "store", outcome) == []


def test_a_stall_is_answered_with_flush_disk_timeout_and_loses_nothing(folder: Path) -> None:
    """The reference does so too: stored, not known to be durable; the next start has the
    message."""
    stall_s, timeout_ms = (10.0, 5_000) if campaign.is_full() else (2.0, 500)
    outcome = run(
        folder / "first", folder / "store", "SYNC_FLUSH", stall_s, 1, timeout_ms=timeout_ms
    )
    wrong = judge(
        outcome, code=FLUSH_DISK_TIMEOUT, least_s=timeout_ms / 1000, meanwhile=_LEAST_ROUNDS
    )
    rounds = sum(one.meanwhile for one in outcome.heard)
    campaign.note("slow disk", len(outcome.heard), wrong=len(wrong), rounds_of_others=rounds)
    assert wrong == []
    # A sender that got code 10 knows that the message is stored.
    for one in outcome.history.sends:
        assert one.outcome in ("ok", "unknown")
    again = start_daemon(folder / "again", folder / "store", "SYNC_FLUSH")
    try:
        again.ready()
        found = served(again.port, folder / "store")
    finally:
        again.close()
    bodies = {one.body for records in found.pulled.values() for one in records}
    assert {one.body for one in outcome.history.sends} == bodies
    assert check(outcome.history, found, Promise()) == []


def test_async_flush_does_not_wait_for_slow_syncs(folder: Path) -> None:
    outcome = run(folder / "first", folder / "store", "ASYNC_FLUSH", slow_s(), 30 * sends())
    wrong = judge(outcome, code=SUCCESS, least_s=0.0, meanwhile=0)
    campaign.note("slow disk", len(outcome.heard), wrong=len(wrong), syncs_meanwhile=outcome.syncs)
    assert wrong == []
    assert outcome.syncs * 10 <= len(outcome.heard)
    assert lost(folder, folder / "store", outcome) == []


def test_topics_made_while_syncs_are_slow_hold_nobody_up(folder: Path) -> None:
    """The maker of a topic waits for its table's save, and nobody else does."""
    outcome = run(folder / "first", folder / "store", "SYNC_FLUSH", slow_s(), 0, topics=sends())
    wrong = judge(outcome, code=SUCCESS, least_s=slow_s(), meanwhile=_LEAST_ROUNDS)
    rounds = sum(one.meanwhile for one in outcome.heard)
    campaign.note("slow disk", len(outcome.heard), wrong=len(wrong), rounds_of_others=rounds)
    assert wrong == []
    assert lost(folder, folder / "store", outcome) == []


def test_an_answer_before_its_sync_is_caught(folder: Path) -> None:
    control = "ack-before-sync"
    outcome = run(folder, folder / "store", "SYNC_FLUSH", 0.3, 2, control=control)
    wrong = judge(outcome, code=SUCCESS, least_s=0.3, meanwhile=0)
    caught = [one for one in wrong if "before its sync" in one]
    campaign.note_control("slow disk", control, len(caught), len(outcome.heard))
    assert caught


def test_a_sync_that_everybody_waits_for_is_caught(folder: Path) -> None:
    """Not by each try: others may be served while a request is on its way to its sync."""
    control = "sync-on-the-loop"
    caught: list[str] = []
    for attempt in range(_TRIES):
        outcome = run(
            folder / f"{attempt}", folder / f"store-{attempt}", "SYNC_FLUSH", slow_s(), 2,
            control=control,
        )  # fmt: skip
        wrong = judge(outcome, code=SUCCESS, least_s=0.0, meanwhile=_LEAST_ROUNDS)
        caught = [one for one in wrong if "others had" in one]
        campaign.note_control("slow disk", control, len(caught), len(outcome.heard))
        if caught:
            break
    assert caught
