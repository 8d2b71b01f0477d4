"""Negative controls: the store with one rule taken away; the storage model must catch each.

A control changes the running code from outside, for the time of one exploration; the product knows
nothing of it. Each names the invariants of which at least one has to be reported.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from aerobee.store.log.scan.log_scanner import LogScanner, Tail
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.segments.mapped_file import MappedFile
from tests.sim.disk.recorded_files import RecordedFiles
from tests.sim.storage.plans import plan_named
from tests.sim.storage.stepped_store import SteppedStore
from tests.sim.storage.workload import Plan, Rules


def _nothing(_patch: pytest.MonkeyPatch) -> None:
    """Rules or plan are changed instead."""


@dataclass(frozen=True)
class Control:
    """A rule taken away, the workload that shows it, and what has to be reported."""

    name: str
    plan: Plan
    caught_by: frozenset[str]
    break_rule: Callable[[pytest.MonkeyPatch], None] = _nothing
    rules: Rules = field(default_factory=Rules)
    states: int = 600


class DirectoriesUnsynced(RecordedFiles):
    """Says that the directory was synced, and did nothing."""

    def sync_directory(self, path: str) -> None:
        self.observe()
        self._directory(path)


def _sync_failures_ignored(patch: pytest.MonkeyPatch) -> None:
    sync = MappedFile.sync

    def sync_or_not(segment: MappedFile) -> None:
        try:
            sync(segment)
        except OSError:
            return

    patch.setattr(MappedFile, "sync", sync_or_not)


def _any_crc_accepted(patch: pytest.MonkeyPatch) -> None:
    original = LogScanner.__init__

    def without_crc(
        scanner: LogScanner, segments: Any, floor: int, named: Any, _crc: int, **more: Any
    ) -> None:
        original(scanner, segments, floor, named, 0, **more)

    patch.setattr(LogScanner, "__init__", without_crc)


def _dispatch_to_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SteppedStore, "dispatch", lambda store: store._reput.dispatch(store.written))


def _cuts_not_zeroed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MappedFile, "zero_from", lambda *_: 0)
    patch.setattr(ConsumeQueue, "zero_from", lambda *_: 0)


def _no_resynchronising(patch: pytest.MonkeyPatch) -> None:
    original = LogScanner.__init__

    def without_floor(
        scanner: LogScanner, segments: Any, _floor: int, *rest: Any, **more: Any
    ) -> None:
        original(scanner, segments, 0, *rest, **(more | {"tail": Tail.TORN}))

    patch.setattr(LogScanner, "__init__", without_floor)


def _offsets_ahead(patch: pytest.MonkeyPatch) -> None:
    """Written bytes are called flushed."""
    init = SteppedStore.__init__

    def with_other_mark(store: SteppedStore, *arguments: Any) -> None:
        init(store, *arguments)
        store._offsets._durable = lambda: (store.written, 0)

    patch.setattr(SteppedStore, "__init__", with_other_mark)


SYNC, SYNC_LIVES = plan_named("sync"), plan_named("sync-lives")
ASYNC_LIVES = plan_named("async-lives")
# Records of several sectors, so that a page can be torn in the middle of a body.
LARGE = replace(plan_named("async"), body_sizes=(1500, 3500), weights={"put": 8, "sync": 1})
# With flushes of the queues, and so offsets files, all along.
FLUSHED = replace(SYNC_LIVES, weights=SYNC_LIVES.weights | {"flush_queues": 8})

CONTROLS = [
    Control("ack before sync", SYNC, frozenset({"I1"}), rules=Rules(ack_on_put=True)),
    Control(
        "directory sync skipped", SYNC, frozenset({"I1"}), rules=Rules(files=DirectoriesUnsynced)
    ),
    Control(
        "mark moved on a failed sync",
        replace(SYNC_LIVES, weights=SYNC_LIVES.weights | {"fail_sync": 4}),
        frozenset({"I1"}),
        _sync_failures_ignored,
    ),
    Control("bad CRC accepted", LARGE, frozenset({"I3"}), _any_crc_accepted, states=2000),
    Control("dispatch ahead of durable", SYNC, frozenset({"I10"}), _dispatch_to_written),
    Control("no zeroing after a cut", ASYNC_LIVES, frozenset({"I2", "I9"}), _cuts_not_zeroed),
    Control("resynchronisation off", FLUSHED, frozenset({"I1"}), _no_resynchronising),
    Control("offsets file ahead of its sync", FLUSHED, frozenset({"I10"}), _offsets_ahead),
]
