"""One run of the daemon on a recorded disk, with transactions and messages with times of their own;
and what a broker has to make of what a power cut leaves of it.

The run: start on an empty disk, clients, kill -9, start again, clients, a stop in order. A state is
judged by the real transactions and timer over the real store, in a process that time goes by in as
the judge says (`tests/sim/broker`): nobody waits for a check.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.config.model import Settings
from aerobee.store.disk.files import Files
from tests.crash.controls import CONTROLS
from tests.crash.disks.mounts import mounted_image
from tests.crash.power_cuts.block_log import BlockLog, CrashState, Disk, choose_states
from tests.crash.power_cuts.recorded_disk import RecordedDisk, make_file_system
from tests.crash.running.child import ChildFailed, in_child
from tests.crash.running.daemons import SMALL, start_daemon
from tests.crash.running.link import SEND, SUCCESS, Link, send_fields
from tests.crash.running.traffic import Marks
from tests.crash.transactions.clients import PRODUCERS, Clients
from tests.crash.transactions.history import DONE, QUEUES, TOPIC, History, Transaction
from tests.crash.transactions.judge import Rules
from tests.service.kit import wait_until
from tests.sim.broker.judge import Asked, judge_broker
from tests.sim.broker.life import body_of
from tests.sim.broker.stepped import TIMED, SteppedBroker, time_from
from tests.sim.broker.told import Fact, Told
from tests.sim.disk.crash_model import State
from tests.sim.storage.checker import Fault
from tests.sim.storage.recovered import ROOT

STORE = "store"
RULES = Rules(checks=3, timeout_ms=200, interval_ms=200)
SETTINGS = {
    "delivery.transaction_timeout_ms": RULES.timeout_ms,
    "delivery.transaction_check_interval_ms": RULES.interval_ms,
    "delivery.transaction_check_max": RULES.checks,
    "delivery.timer_roll_window_seconds": 2,
    "delivery.flush_delay_offset_interval_ms": 100,
}
#: With a control the log is synced seldom, so that progress is ahead of it for longer.
_SELDOM = {"store.flush_interval_ms": 400, "store.flush_thorough_interval_ms": 400}
_PREPARED = 60
_TIMED = 80
_WAITS_MS = (5, 50, 50, 200, 400, 3_000)
_PAUSE_S = 0.01
_AT_ONCE, _STEP_S = 6, 0.05


@dataclass(slots=True)
class Timed:
    """A message with a time of its own; `mark` is that of its answer, -1 without one."""

    deliver_ms: int
    mark: int = -1


@dataclass(slots=True)
class BrokerRecording:
    """The writes that the disk got, and the answers that clients got."""

    flush: str
    seed: int
    log: BlockLog
    history: History
    timed: list[Timed] = field(default_factory=list)

    def states(self, count: int) -> list[CrashState]:
        return choose_states(
            self.log, random.Random(self.seed), count, self.log.index_of_mark(0), 0
        )

    def told(self, cut: int) -> Told:
        """The promises that hold if power goes there. Under ASYNC_FLUSH no answer is worth anything
        then; the records left have to agree all the same."""
        marks = self.log.marks(cut) if self.flush == "SYNC_FLUSH" else {}
        told = Told()
        for one in self.history.transactions:
            told.facts["prepared", one.number].append(Fact(one.half, one.mark in marks))
            for decision in one.decisions:
                is_refused = decision.contrary and decision.code not in (None, *DONE)
                if not is_refused:
                    done = decision.is_done and decision.mark in marks
                    told.facts["decided", one.number].append(Fact(decision.what, done))
        for number, message in enumerate(self.timed):
            told.facts["timed", number].append(Fact(message.deliver_ms, message.mark in marks))
        return told

    def asked(self) -> Asked:
        return Asked(
            lambda number: Transaction.drawn(self.seed, number, RULES.checks), body_of, RULES
        )


def record(
    folder: Path,
    flush: str,
    seed: int,
    control: str = "",
    *,
    prepared: int = _PREPARED,
    timed: int = _TIMED,
) -> BrokerRecording:
    """Run it below `folder`, each life until these numbers of transactions are prepared and of
    messages with own times sent; `control` names what is broken in the daemon."""
    image = make_file_system(folder / "base", "ext4")
    with RecordedDisk(folder, image, 0) as disk:
        marks = Marks(disk.mark)
        history = History(seed, RULES.checks, PRODUCERS, marks.next)
        sent: list[Timed] = []
        clients = Clients(history)
        disk.mark(0)
        for end in (signal.SIGKILL, signal.SIGTERM):
            more = SETTINGS | (_SELDOM if control else {})
            daemon = start_daemon(
                folder / "daemon", disk.root / STORE, flush, control, more
            ).ready()
            try:
                with Link(daemon.port) as link:
                    link.create_topic(TOPIC, QUEUES)
                    link.create_topic(TIMED, 1)
                sending = _Sending(daemon.port, sent, len(sent) + timed, marks, seed)
                with clients.at_work(daemon.port), sending:
                    asked = history.asked
                    for _ in range(0, prepared, _AT_ONCE):
                        # Not all at once: rounds of checks and syncs come between.
                        before = history.prepared
                        history.goal = len(history.transactions) + _AT_ONCE
                        history.wait_prepared(before + _AT_ONCE)
                        threading.Event().wait(_STEP_S)
                    if prepared:
                        history.wait_asked(asked + 5)
                    sending.wait_sent()
                    os.kill(daemon.process.pid, end)
                    daemon.wait()
            finally:
                daemon.close()
    return BrokerRecording(flush, seed, disk.block_log(), history, sent)


class _Sending:
    """Messages with times of their own are sent while the block runs, unless none are wanted."""

    def __init__(self, port: int, timed: list[Timed], wanted: int, marks: Marks, seed: int) -> None:
        self._port, self._timed, self._marks = port, timed, marks
        self._wanted = wanted
        self._rng = random.Random(f"timed {seed} {len(timed)}")
        self._done = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._guarded)

    def __enter__(self) -> None:
        if self._wanted > len(self._timed):
            self._thread.start()

    def wait_sent(self) -> None:
        """Until as many are sent as were wanted."""
        wait_until(lambda: len(self._timed) >= self._wanted, "all messages are sent")

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._failures:
            raise self._failures[0]

    def _guarded(self) -> None:
        try:
            self._send()
        except ConnectionError:
            return  # the daemon has gone
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._failures.append(error)

    def _send(self) -> None:
        with Link(self._port) as link:
            while not self._done.wait(_PAUSE_S):
                number = len(self._timed)
                deliver_ms = time.time_ns() // 1_000_000 + self._rng.choice(_WAITS_MS)
                self._timed.append(Timed(deliver_ms))
                properties = {"TIMER_DELIVER_MS": str(deliver_ms), "UNIQ_KEY": f"T{number}"}
                answer = link.call(SEND, send_fields(TIMED, 0, properties), body_of(number))
                if answer.code == SUCCESS:
                    self._timed[-1].mark = self._marks.next()


# --- judging --------------------------------------------------------------------------------------


def judge_cuts(
    folder: Path, recording: BrokerRecording, states: Sequence[CrashState]
) -> dict[CrashState, list[Fault]]:
    """The states that are not as promised, and what is wrong with each."""
    wrong: dict[CrashState, list[Fault]] = {}
    for state, disk in recording.log.images(states):
        faults = _judge(folder, recording, state, disk)
        if faults:
            wrong[state] = faults
    return wrong


def _judge(folder: Path, recording: BrokerRecording, state: CrashState, disk: Disk) -> list[Fault]:
    image, target = folder / "image", folder / "mounted"
    disk.save(image)
    target.mkdir(exist_ok=True)
    with mounted_image(image, target):
        root = target / STORE
        if not (root / "commitlog").exists():
            return []
        try:
            return in_child(lambda: _judge_directory(root, recording, state.cut))
        except ChildFailed as failure:
            return [Fault("start", str(failure))]


def _judge_directory(root: Path, recording: BrokerRecording, cut: int) -> list[Fault]:
    """In a child: code replaced here goes with its process."""
    CONTROLS["after-a-power-cut"]()
    random.seed(f"{cut}")
    clocks = time_from(0.0)
    clocks.shift_ms = time.time_ns() // 1_000_000
    settings = Settings.for_tests(
        store_path=str(root),
        flush_disk_type=recording.flush,
        disk_warning_ratio=1.0,
        transaction_timeout_ms=RULES.timeout_ms,
        transaction_check_interval_ms=RULES.interval_ms,
        transaction_check_max=RULES.checks,
        **SMALL,
    )

    def start() -> SteppedBroker:
        return SteppedBroker(
            settings,
            Files(),
            clocks,
            state_file=lambda name: JsonStateFile(root / Path(name).relative_to(ROOT)),
        )

    return judge_broker(start, lambda: state_of(root), recording.told(cut), recording.asked())


def state_of(root: Path) -> State:
    """The log and the tables of a store directory, as a state of a disk in memory has them."""
    files = [*(root / "commitlog").glob("*"), *(root / "config").glob("*.json")]
    return {
        f"{ROOT}/{path.relative_to(root)}": path.read_bytes() for path in files if path.is_file()
    }
