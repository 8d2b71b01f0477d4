"""Rules of the store, broken one at a time: the negative controls of the crash tests.

Each function breaks one rule in the process that calls it: a daemon (`broken_daemon.py`) or the
child in which a store is recovered (`power_cut.py`). What is broken is replaced from outside, here;
the product has no switch for any of it. A name that is no longer there fails loudly: a control that
controls nothing is worse than none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from aerobee import file_replacement
from aerobee.broker.appending.answers import WhenKept
from aerobee.broker.appending.reput_service import ReputService
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.delay.delivery_progress import DelayProgress, TimerProgress
from aerobee.broker.delay.timer import TimerService
from aerobee.broker.transactions import transaction_log
from aerobee.broker.transactions.check_back import CheckService
from aerobee.broker.transactions.transaction_log import TransactionLog
from aerobee.broker.transactions.transaction_requests import TransactionRequests
from aerobee.broker.transactions.transactions import Transactions
from aerobee.protocol.message.record_check import CHECK_NOTHING
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_MASK
from aerobee.protocol.names import HALF_TOPIC
from aerobee.store.disk.files import Files
from aerobee.store.disk.steady_time import SteadyTime
from aerobee.store.flush.services import CommitLogSync
from aerobee.store.log.scan.log_scanner import LogScanner
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.mapped_file import MappedFile


def replace(owner: Any, name: str, value: object) -> Any:
    """Put `value` in the place of an attribute that has to be there; the old one."""
    old = getattr(owner, name)
    setattr(owner, name, value)
    return old


def ack_before_sync() -> None:
    """SYNC_FLUSH sends are answered when appended."""

    replace(WhenKept, "when_kept", lambda _answers, _connection, _request, _end, made: made)


def sync_on_the_loop() -> None:
    """The loop waits for the sync of each SYNC_FLUSH send, and everybody with it."""

    def when_kept(
        answers: WhenKept, connection: Any, request: Any, end: int, made: bytes
    ) -> bytes | None:
        answered: bytes | None = old(answers, connection, request, end, made)
        answers._store.request_flush()
        while answers._marks.durable < end:
            time.sleep(0.01)
        return answered

    old = replace(WhenKept, "when_kept", when_kept)


def dispatch_ahead_of_durable() -> None:
    """Consumers see what is appended, under SYNC_FLUSH too (docs/reliability.md B4)."""

    def dispatch_round(store: Any, *_: Any) -> Any:
        return store._reput.dispatch(store.written), False

    def end_turn(reput: ReputService) -> None:
        old(reput)
        reput.run()

    old = replace(ReputService, "_end_turn", end_turn)
    replace(MessageStore, "dispatch_round", dispatch_round)


def no_directory_sync() -> None:
    """New names and renames are left to the kernel's pleasure."""
    replace(Files, "sync_directory", lambda *_: None)
    replace(file_replacement, "sync_directory", lambda *_, **__: None)


def mark_moved_on_failed_sync() -> None:
    """A sync that failed counts as done (docs/reliability.md B3)."""

    def sync(segment: MappedFile) -> None:
        try:
            old_sync(segment)
        except OSError:
            return

    old_sync = replace(MappedFile, "sync", sync)


def never_flushed() -> None:
    """ASYNC_FLUSH forgets to sync; the clean stop does it."""
    replace(CommitLogSync, "_worth_it", lambda *_: False)


def offsets_file_ahead_of_sync() -> None:
    """The offsets file says that what is merely written is flushed."""

    def init(store: Any, *arguments: Any) -> None:
        old_init(store, *arguments)
        replace(
            store._offsets, "_durable", lambda: (store.written, store._parts.checkpoint.physic_ms)
        )

    old_init = replace(MessageStore, "__init__", init)


def bad_crc_accepted() -> None:
    """A record whose lengths add up is taken, whatever its body holds (docs/reliability.md B6)."""

    def init(scanner: Any, *arguments: Any, **named: Any) -> None:
        old_init(scanner, *arguments, **named)
        replace(scanner, "_check_crc", CHECK_NOTHING)

    old_init = replace(LogScanner, "__init__", init)


def no_zeroing_after_a_cut() -> None:
    """The bytes that recovery cuts off stay in the file (docs/reliability.md B11)."""
    replace(Files, "zero", lambda *_: 0)


def no_reservation() -> None:
    """Files are as sparse as RocketMQ's (docs/reliability.md B2)."""
    replace(Files, "reserve", lambda *_: None)


def cache_trusted() -> None:
    """Recovery reads what the kernel has, which may never have reached the disk."""
    replace(Files, "forget_cached", lambda *_: None)


def after_a_power_cut() -> None:
    """Nothing is broken, but the machine has been started again since."""
    replace(Files, "boot_id", lambda _: "after the power cut")


def delete_by_the_wall_clock() -> None:
    """A jump of the wall clock is believed at once (`tests/sim/clocks/test_clocks_daemon.py`)."""
    replace(SteadyTime, "now_ms", lambda steady: steady._clock.now_ms())


def op_messages_forgotten() -> None:
    """A decision is noted in memory alone: no op message is stored."""
    replace(TransactionLog, "_put_op", lambda *_: None)


def half_messages_visible() -> None:
    """Half messages are stored where the message is to go."""
    replace(
        transaction_log,
        "half_form",
        lambda message: msgspec.structs.replace(
            message, sys_flag=message.sys_flag & ~SYS_TRANSACTION_MASK
        ),
    )


def transactions_forgotten() -> None:
    """A start takes all half messages for decided."""

    def load(service: Transactions) -> None:
        end = service._store.max_offset(HALF_TOPIC, 0)
        service._log.load(end, None)

    replace(Transactions, "_load", load)


def checks_counted_twice() -> None:
    """Each round counts as two."""

    def copy(log: TransactionLog, half: Any, at: Any, checks: int | None, *rest: Any) -> Any:
        return old_copy(log, half, at, None if checks is None else checks + 1, *rest)

    old_copy = replace(TransactionLog, "copy", copy)


def decisions_overruled() -> None:
    """Any decision is carried out, whatever went before it."""
    replace(TransactionRequests, "_is_done", lambda *_: False)


def commit_forgotten() -> None:
    """A commit is noted, and the message is not delivered."""

    def commit(log: TransactionLog, half: Any, pending_at: Any) -> Any:
        return log.roll_back(half, pending_at)

    replace(TransactionLog, "commit", commit)


def timer_progress_ahead_of_sync() -> None:
    """timerProgress.json says what is delivered, durable or not."""

    def init(progress: TimerProgress, file: Any, *_: Any) -> None:
        old_init(progress, file, lambda: 1 << 62)

    old_init = replace(TimerProgress, "__init__", init)


def transaction_progress_ahead_of_sync() -> None:
    """The progress of transactions is committed at once, as RocketMQ does it."""

    def save(service: CheckService) -> None:
        service._commit(*service._table.progress())

    replace(CheckService, "save_progress", save)


def delivered_early() -> None:
    """A waiting message is delivered up to 300 ms before its time, if its service looks then."""

    def until(timer: TimerService, now_ms: int) -> int:
        return old_until(timer, now_ms) + 300

    def deliver(service: ScheduleMessageService, level: Any, now_ms: int) -> None:
        old_deliver(service, level, now_ms + 300)

    old_until = replace(TimerService, "_until_ms", until)
    old_deliver = replace(ScheduleMessageService, "_serve", deliver)


def waiting_forgotten() -> None:
    """A start takes all that waits for delivered."""

    def begin(timer: TimerService) -> None:
        done = timer._progress.done
        ahead = done.cursor._replace(action_ms=timer._clock_ms() + 1_000)
        timer._progress.moved(done.at(ahead))
        old_begin(timer)

    old_begin = replace(TimerService, "_begin", begin)
    replace(DelayProgress, "of", lambda *_: 1 << 60)


CONTROLS: dict[str, Callable[[], None]] = {
    "ack-before-sync": ack_before_sync,
    "sync-on-the-loop": sync_on_the_loop,
    "dispatch-ahead-of-durable": dispatch_ahead_of_durable,
    "no-directory-sync": no_directory_sync,
    "mark-moved-on-failed-sync": mark_moved_on_failed_sync,
    "never-flushed": never_flushed,
    "offsets-file-ahead-of-sync": offsets_file_ahead_of_sync,
    "bad-crc-accepted": bad_crc_accepted,
    "no-zeroing-after-a-cut": no_zeroing_after_a_cut,
    "no-reservation": no_reservation,
    "cache-trusted": cache_trusted,
    "after-a-power-cut": after_a_power_cut,
    "delete-by-the-wall-clock": delete_by_the_wall_clock,
    "op-messages-forgotten": op_messages_forgotten,
    "half-messages-visible": half_messages_visible,
    "transactions-forgotten": transactions_forgotten,
    "checks-counted-twice": checks_counted_twice,
    "decisions-overruled": decisions_overruled,
    "commit-forgotten": commit_forgotten,
    "timer-progress-ahead-of-sync": timer_progress_ahead_of_sync,
    "transaction-progress-ahead-of-sync": transaction_progress_ahead_of_sync,
    "delivered-early": delivered_early,
    "waiting-forgotten": waiting_forgotten,
}
