"""R5: one script of a store's life, run again and again with the n-th call failing.

The script does everything once: open, send, flush, roll, dispatch, index, delete a topic, close,
open again. Whichever call failed, and how, this must hold: only errors of the store's own kinds
come out; messages acknowledged under SYNC_FLUSH are there after a restart, whatever becomes of the
rest; and once the fault has passed, sends go on by themselves, unless a sync or write failed and
the store said that it has stopped.
"""

from dataclasses import dataclass, field

from aerobee.store.errors import StoreBroken, StoreError
from tests.sim.disk.failing_calls import FailingFiles, Fault, failing
from tests.sim.storage.explore import judge, states_at
from tests.sim.storage.history import Life
from tests.sim.storage.workload import Plan, Recorded, Rules, Runner, log_offsets

PLAN = Plan(
    "nth-call", True, 0, {}, body_sizes=(600, 900), settings={"index_entries": 12}, segment=4096
)
SCRIPT = (
    "batch sync dispatch put put sync dispatch flush_queues allocate put sync put sync dispatch",
    "half delete_topic reopen put sync dispatch put put sync flush_queues close",
)
#: Failures that pass: nothing was lost by them, so the store goes on when they are over.
PASSING = frozenset({"ENOSPC", "EMFILE", "short"})
_CRASHES = ("none", "kill", "killed-1")


@dataclass
class Run:
    """The result of one run; `wrong` is empty if all is as promised."""

    fault: Fault
    wrong: list[str] = field(default_factory=list)
    broke: bool = False
    acked: int = 0


def run_with(fault: Fault) -> Run:
    """Run the script with that fault, heal it, go on, crash, recover, check."""
    run = Run(fault)
    runner = ScriptRunner(run)
    with failing(fault):
        runner.play()
        fault.healed = True
        runner.go_on()
    runner.finish()
    run.acked = max((mark.log_offset for mark in runner.life.acked), default=0)
    for name in _CRASHES:
        recorded = runner.recorded()
        for built in states_at(recorded, len(recorded.journal), [name]):
            for broken in judge(PLAN, recorded, len(recorded.journal), built):
                run.wrong.append(f"{name}: {broken.invariant} {broken.text}")
    return run


class ScriptRunner(Runner):
    """Plays SCRIPT instead of steps drawn by lot, and goes on whatever fails."""

    def __init__(self, outcome: Run) -> None:
        super().__init__(PLAN, 1, Rules(files=FailingFiles))
        self._outcome = outcome
        self._is_open = False
        self._store = None  # type: ignore[assignment]

    @property
    def life(self) -> Life:
        """The only life there is."""
        return self._life

    def play(self) -> None:
        """The whole script, with the fault."""
        self._attempt("open")
        for name in " ".join(SCRIPT).split():
            if not self._is_open:
                self._attempt("open")
            if self._is_open and name != "open":
                self._attempt(name)

    def go_on(self) -> None:
        """The fault is over: sends work again, by themselves or, of a broken store, after a
        restart."""
        if not self._is_open:
            self._attempt("open")
        if not self._is_open:
            self._outcome.wrong.append("does not open after the fault is over")
            return
        self.clock.passed_s += 20
        if self._store.broken is None:
            self._expect_sends("by themselves")

    def finish(self) -> None:
        """The end of the process."""
        self._files.observe()
        if self._is_open:
            self._store.abandon()
        self._is_open = False
        self._end_life()

    def recorded(self) -> Recorded:
        """The life and its journal."""
        return self.lives[-1]

    def _expect_sends(self, how: str) -> None:
        before = len(self._life.sent)
        self._attempt("put")
        self._attempt("sync")
        if len(self._life.sent) != before + 1 or self._store.durable != self._store.written:
            reason = self._store.not_writable_reason()
            self._outcome.wrong.append(f"sends do not go on {how}: {reason}")

    def _open(self) -> None:
        promised = list(self._life.acked)
        super()._open()
        opened, self._life.acked = self._life.acked, promised
        self._life.forget_lost(log_offsets(self._files.image()))
        self._life.acked = opened

    def _attempt(self, name: str) -> None:
        try:
            if name == "open":
                self._open()
            else:
                self._do(name)
        except StoreError as error:
            self.log.append(f"    {error}")
        except OSError as error:
            if name != "delete_topic":
                self._outcome.wrong.append(f"{name} let out {error!r}")
        except Exception as error:  # noqa: BLE001 - whatever else it is, it is a finding
            self._outcome.wrong.append(f"{name} raised {error!r}")
        self._is_open = self._store is not None and self._store.open_now
        if self._is_open and self._store.broken is not None:
            self._note_broken(name, self._store.broken)

    def _note_broken(self, step: str, broken: StoreBroken) -> None:
        run = self._outcome
        # The rest of a half-deleted topic would be in the way, so that stops the store.
        if run.fault.kind in PASSING and not run.broke and step != "delete_topic":
            run.wrong.append(f"broken by what passes: {broken}")
        run.broke = True
