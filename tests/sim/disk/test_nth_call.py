"""R5: the n-th call fails, for every n, in every way, once and from then on."""

import signal
from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from aerobee.store.segments.mapped_file import MappedFile
from tests import campaign
from tests.sim.disk.failing_calls import CALLS, Fault
from tests.sim.disk.nth_call import run_with
from tests.unit.store.support import bodies, message, small_settings

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("kind", CALLS)
def test_no_failing_call_costs_an_acknowledged_message(kind: str, lasting: bool) -> None:
    wrong: list[str] = []
    runs = stopped = 0
    for nth in campaign.strided("n-th call", f"{kind} {lasting}", 1, 2000):
        run = run_with(Fault(kind, nth, lasting))
        if not run.fault.hit:
            break
        runs += 1
        stopped += run.broke
        wrong += [f"{kind} {nth} ({run.fault.hit}) lasting={lasting}: {text}" for text in run.wrong]
    print(f"{kind}, lasting={lasting}: {runs} runs, {stopped} stopped the store")
    campaign.note("n-th call", runs, wrong=len(wrong), ended_in_the_documented_stop=stopped)
    assert not wrong, "\n".join(wrong[:20])
    assert nth > 20


def test_control_marks_moved_on_a_failed_sync_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = MappedFile.sync

    def sync_or_not(segment: MappedFile) -> None:
        try:
            sync(segment)
        except OSError:
            return

    monkeypatch.setattr(MappedFile, "sync", sync_or_not)
    caught: list[int] = []
    for nth in range(1, 40):
        if run_with(Fault("ENOSPC of a sync", nth, False)).wrong:
            caught.append(nth)
        if campaign.enough(len(caught)):
            break
    print(f"caught with the failing sync number {caught}")
    campaign.note_control("n-th call", "mark moved on a failed sync", len(caught), nth)
    assert caught


def test_signals_interrupt_calls_and_cost_nothing(tmp_path: Path) -> None:
    """The real system: signals every half millisecond, so that many calls end with EINTR.

    No more than a burst for each message: a call that takes longer than half a millisecond, as on a
    busy machine, and begins anew after each EINTR would never end.
    """
    received, left = 0, 0

    def count(_signal: int, _frame: object) -> None:
        nonlocal received, left
        received += 1
        left -= 1
        if left <= 0:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def burst() -> None:
        nonlocal left
        left = 20
        if signal.getitimer(signal.ITIMER_REAL)[1] == 0:  # running on, it is not begun anew
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)

    before = signal.signal(signal.SIGALRM, count)
    try:
        settings = small_settings(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_ms=1)
        made: list[bytes] = []
        lives = 0
        while lives < 5 or (received <= 100 and lives < 100):
            lives += 1
            burst()
            store = MessageStore.open(settings)
            for _ in range(60):
                burst()
                made.append(b"%06d" % len(made))
                end = store.log.put(message(made[-1], unique=made[-1].decode())).end
                store.request_flush()
                assert store.wait_durable(end, 30)
                store.dispatch()
            assert bodies(store) == made
            assert store.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    print(f"{received} signals in {lives} lives")
    assert received > 100
