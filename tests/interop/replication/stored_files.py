"""Logs and queues of two stores, read from their files and compared."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TypeAlias

from tests.interop.brokers import Broker
from tests.interop.processes import wait_until

DELAYED = "SCHEDULE_TOPIC_XXXX/"
_UNIT = struct.Struct(">qiq")
#: Log offset, size and tag code of each entry, in order.
Entries: TypeAlias = list[tuple[int, int, int]]


def check_logs_equal(one: Broker, other: Broker, end: int, least_segments: int) -> None:
    """Both have the same segments with the same bytes up to `end`."""
    ours, theirs = _segments(one.store, end), _segments(other.store, end)
    assert [path.name for path in ours] == [path.name for path in theirs]
    assert len(ours) >= least_segments
    for mine, its in zip(ours, theirs, strict=True):
        stop = min(mine.stat().st_size, end - int(mine.name))
        assert _read(mine, stop) == _read(its, stop), f"segment {mine.name} differs"


def _segments(store: Path, end: int) -> list[Path]:
    """Segments of the log that hold something; brokers make others ahead."""
    return sorted(path for path in (store / "commitlog").iterdir() if int(path.name) < end)


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def check_queues_equal(
    one: Broker, other: Broker, *, killed_java: bool = False
) -> dict[str, Entries]:
    """Both come to the same queues; which these are.

    A Java broker 4.9 that was killed dispatches messages that wait for their delay again with
    the hash of their tag, where the time of their delivery belongs. `killed_java` leaves those
    codes out."""
    found: list[dict[str, Entries]] = []

    def read(broker: Broker) -> dict[str, Entries]:
        entries = queues(broker.store)
        if killed_java:
            for name in entries:
                if name.startswith(DELAYED):
                    entries[name] = [(offset, size, 0) for offset, size, _ in entries[name]]
        return entries

    def equal() -> bool:
        found[:] = read(one), read(other)
        return found[0] == found[1]

    try:
        wait_until(equal, 30, "the queues are equal", 0.2)
    except AssertionError as error:
        raise AssertionError(f"{error}: {_difference(*found)}") from None
    return found[0]


def queues(store: Path) -> dict[str, Entries]:
    """The entries of all queues that have some, by `topic/queue`."""
    found = {}
    for folder in sorted((store / "consumequeue").glob("*/*")):
        entries = [
            entry
            for path in sorted(folder.iterdir())
            for entry in _UNIT.iter_unpack(path.read_bytes())
            if entry[1] > 0
        ]
        if entries:
            found[f"{folder.parent.name}/{folder.name}"] = entries
    return found


def _difference(one: dict[str, Entries], other: dict[str, Entries]) -> str:
    for name in sorted(one.keys() | other.keys()):
        mine, its = one.get(name, []), other.get(name, [])
        if mine != its:
            at = next(
                (n for n, pair in enumerate(zip(mine, its, strict=False)) if pair[0] != pair[1]),
                min(len(mine), len(its)),
            )
            return (
                f"{name} has {len(mine)} and {len(its)} entries, which differ from {at} on: "
                f"{mine[at : at + 2]} and {its[at : at + 2]}"
            )
    return "nothing"
