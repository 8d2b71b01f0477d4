"""P21: the cost to a broker of millions of messages that wait for a time of their own.

    python -m tests.bench.cases.pending [--messages 10000000] [--runs 3] [--parts spread,hour]
    [--secs 20]
                                  [--dir DIR] [--dry]

Two stores, filled through the store's own classes, in the form in which the timer stores them:

- spread: delivery times over 40 days, so that most are to be rolled first;
- hour: all are due within one hour of the clock, so that all are in memory at its beginning.

Each is started on after a clean stop and after kill -9. Measured from the launch of the process to
the first acknowledged send, files in the page cache. Then, of `hour`, what is delivered in some
seconds at its beginning, 2,000 a second: processor time of the whole process a delivery. Memory is
that of the process at the end of the last run: its own, and with the pages of files that it has
mapped, which the system takes back when it wants them. The scrub is off: it would read the store
meanwhile. A store is removed when it was measured.
"""

from __future__ import annotations

import argparse
import datetime
import random
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from aerobee.broker.delay.timer import roll_window_ms
from aerobee.config.model import Settings
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import pack_host
from aerobee.store.message_store import MessageStore
from aerobee.store.reading.timed_messages import next_action_ms, waiting_form
from tests.bench.cases.restart import shape
from tests.bench.cases.starts import processor_s, processor_to_first_send
from tests.bench.loads import CACHE
from tests.bench.report import machine, middle, replace_table
from tests.interop.brokers import OurBroker
from tests.interop.processes import wait_until
from tests.interop.wire import Wire

TOPIC, QUEUES = "bench-pending", 4
MB = 1_000_000
_HOST = pack_host("127.0.0.1", 10911)
_BODY = b"x" * 100
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000
_DISPATCH_EVERY = 10_000
# The time allowed for the fill of a message, and for the starts before the first delivery.
_FILL_US, _STARTS_S = 30, 60
_WAIT_S = 300.0
# This number is watched while they become due; the others come later, in the same hour.
_WATCHED, _WATCHED_MS = 120_000, 60_000
_ROOM_MS = 5 * _WATCHED_MS
# The window of rolling is that of the fill; the scrub would read the store all the while, for a
# fifth of a processor.
_EXTRA = {"fileReservedTime": "72", "scrub.bytes_per_second": "0"}


@dataclass(frozen=True, slots=True)
class Spread:
    """When the messages are due."""

    name: str
    what: str

    def first_ms(self, earliest_ms: int) -> int:
        """The time of the first delivery, not before that one."""
        left_ms = _HOUR_MS - earliest_ms % _HOUR_MS
        return earliest_ms + left_ms if self.name == "hour" and left_ms < _ROOM_MS else earliest_ms

    def deliver_ms(self, number: int, first_ms: int, chance: random.Random) -> int:
        """The time of a message's delivery."""
        if self.name != "hour":
            return first_ms + chance.randrange(40 * _DAY_MS)
        if number < _WATCHED:
            return first_ms + chance.randrange(_WATCHED_MS)
        left_ms = _HOUR_MS - first_ms % _HOUR_MS
        return first_ms + chance.randrange(2 * _WATCHED_MS, left_ms)


PARTS = (Spread("spread", "over 40 days"), Spread("hour", "within one hour"))
ENDS = (("clean", "a clean stop"), ("kill", "kill -9"))


@dataclass(slots=True)
class Figures:
    """Figures of one start; seconds, bytes, and microseconds of processor a delivery."""

    after: str
    start_s: float
    processor_s: float
    own_bytes: int = 0
    resident_bytes: int = 0
    delivery_us: float = 0.0
    delivered_per_s: float = 0.0


# --- filling --------------------------------------------------------------------------------------


def settings_of(root: Path) -> Settings:
    sizes = shape()
    return Settings(
        store_path=str(root),
        commit_log_segment_bytes=sizes.segment_bytes,
        consume_queue_segment_bytes=sizes.queue_segment_bytes,
        index_slots=sizes.index_slots,
        index_entries=sizes.index_entries,
        disk_warning_ratio=0.97,
    ).resolve()


def fill(root: Path, spread: Spread, messages: int) -> int:
    """Stores this number of messages that wait; returns the time of the first delivery."""
    settings = settings_of(root)
    window_ms = roll_window_ms(settings)
    chance = random.Random(f"pending {spread.name} {messages}")
    began = time.monotonic()
    ready_ms = time.time_ns() // 1_000_000 + messages * _FILL_US // 1000 + _STARTS_S * 1000
    first_ms = spread.first_ms(ready_ms)
    store = MessageStore.open(settings)
    try:
        for number in range(messages):
            deliver_ms = spread.deliver_ms(number, first_ms, chance)
            now_ms = time.time_ns() // 1_000_000
            action_ms = next_action_ms(deliver_ms, now_ms, window_ms)
            store.log.put(waiting_form(message(number), deliver_ms, action_ms))
            if number % _DISPATCH_EVERY == 0:
                store.dispatch()
            if number % 1_000_000 == 999_999:
                print(f"{number + 1} stored, {time.monotonic() - began:.0f} s", flush=True)
        store.dispatch()
    finally:
        if not store.close():
            raise RuntimeError(f"the store in {root} was not closed in order")
    print(f"filled {spread.name} in {time.monotonic() - began:.0f} s", flush=True)
    return first_ms


_PLAIN = StoreMessage(
    TOPIC, 0, 0, 0, 1_700_000_000_000, _HOST, _HOST, 0, 0, _BODY, b"", 0, ()
)  # fmt: skip


def message(number: int) -> StoreMessage:
    """A message as a client sends it, with its unique id."""
    text = f"UNIQ_KEY\x017F00000100002A139A55{number:012X}\x02CLUSTER\x01DefaultCluster"
    return msgspec.structs.replace(_PLAIN, queue_id=number % QUEUES, properties=text.encode())


# --- measuring ------------------------------------------------------------------------------------


def memory(pid: int) -> tuple[int, int]:
    """(the process's own, with mapped files) in bytes, as proc(5) says."""
    status = Path(f"/proc/{pid}/status").read_text()
    own, resident = (
        int(found[1]) * 1024
        for name in ("RssAnon", "VmRSS")
        if (found := re.search(rf"{name}:\s+(\d+) kB", status)) is not None
    )
    return own, resident


def delivered(wire: Wire) -> int:
    return sum(wire.max_offset(TOPIC, queue) for queue in range(QUEUES))


def run(broker: OurBroker, before: str, end: str, first_ms: int | None, seconds: float) -> Figures:
    """One start after an end of `before`'s kind, some seconds of the deliveries that begin at
    `first_ms`, and the broker's own end."""
    start_s, start_processor_s = processor_to_first_send(broker)
    try:
        broker.wait_ready()
        broker.create_topic(TOPIC, QUEUES)
        figures = Figures(before, start_s, start_processor_s)
        if first_ms is not None:
            deliver(broker, figures, first_ms, seconds)
        figures.own_bytes, figures.resident_bytes = memory(broker.pid)
        if end == "clean":
            broker.stop()
    finally:
        broker.kill()
    return figures


def deliver(broker: OurBroker, figures: Figures, first_ms: int, seconds: float) -> None:
    """Watch deliveries for `seconds`, once they have begun and nothing is late."""
    wait_s = max(0.0, first_ms / 1000 - time.time()) + _WAIT_S
    with broker.wire() as wire:
        before = delivered(wire)
        wait_until(lambda: delivered(wire) > before, wait_s, "the first delivery", every_s=0.2)
        catch_up(wire)
        count, processor, began = delivered(wire), processor_s(broker.pid), time.monotonic()
        time.sleep(seconds)
        count = delivered(wire) - count
        figures.delivery_us = (processor_s(broker.pid) - processor) / count * 1e6
        figures.delivered_per_s = count / (time.monotonic() - began)


def catch_up(wire: Wire) -> None:
    """Wait until what was due meanwhile is delivered."""
    due_a_second = _WATCHED * 1000 / _WATCHED_MS
    rate = 2 * due_a_second
    while rate > 1.2 * due_a_second:
        before, began = delivered(wire), time.monotonic()
        time.sleep(1)
        rate = (delivered(wire) - before) / (time.monotonic() - began)


def measure(spread: Spread, options: argparse.Namespace) -> list[Figures]:
    root = options.dir / spread.name
    shutil.rmtree(root, ignore_errors=True)
    try:
        first_ms = fill(root / "store", spread, options.messages)
        sizes = replace(shape(), extra=shape().extra | _EXTRA)
        found: list[Figures] = []
        # The fill has ended in order, and each start leaves behind what the next one is about.
        for number in range(2 * options.runs):
            before, end = (ENDS[one % 2][0] for one in (number, number + 1))
            broker = OurBroker(root / "run", sizes, root / "store")
            last = number == 2 * options.runs - 1
            watched_ms = first_ms if last and spread.name == "hour" else None
            found.append(run(broker, before, end, watched_ms, options.secs))
            print(f"{spread.name:6} {found[-1]}", flush=True)
        return found
    finally:
        shutil.rmtree(root, ignore_errors=True)


def rows(spread: Spread, found: Sequence[Figures]) -> list[str]:
    lines = []
    for end, what in ENDS:
        those = [one for one in found if one.after == end]
        cells = [
            f"{middle([one.start_s for one in those])} s",
            middle([one.processor_s for one in those]),
        ]
        lines.append(f"| {spread.what} | {what} | {' | '.join(cells)} |")
    return lines


def table(options: argparse.Namespace, found: dict[str, list[Figures]]) -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"{now}, `python -m tests.bench.cases.pending {' '.join(sys.argv[1:])}`, on {machine()}.",
        "",
        f"| {options.messages:,} messages, due | started after | first send | processor, s |",
        "|---|---|---|---|",
    ]
    for spread in PARTS:
        if spread.name in found:
            lines += rows(spread, found[spread.name])
    for spread in (spread for spread in PARTS if spread.name in found):
        last = found[spread.name][-1]
        lines += [
            "",
            f"Memory, due {spread.what}: {last.own_bytes / MB:.0f} MB of its own, "
            f"{last.resident_bytes / MB:.0f} MB with the pages of files that it has mapped.",
        ]
        if last.delivery_us:
            lines[-1] += (
                f" Deliveries meanwhile: {last.delivered_per_s:,.0f} a second as they become due, "
                f"{last.delivery_us:.0f} us of processor each."
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="pending", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--secs", type=float, default=20)
    parser.add_argument("--parts", default=",".join(spread.name for spread in PARTS))
    parser.add_argument("--dir", type=Path, default=CACHE / "pending")
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    found = {
        spread.name: measure(spread, options)
        for spread in PARTS
        if spread.name in options.parts.split(",")
    }
    text = table(options, found)
    if not options.dry:
        replace_table("pending", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
