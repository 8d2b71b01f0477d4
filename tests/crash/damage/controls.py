"""Rules of the store broken on purpose: the judge has to notice each."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from aerobee.broker.tables.files.state_file import JsonStateFile, StateFileError
from aerobee.protocol.message.record_check import CHECK_NOTHING
from aerobee.store import message_store
from aerobee.store.background.scrub import entry_scrub as scrub_units
from aerobee.store.disk import offsets_file
from aerobee.store.disk.lock import StoreLock
from aerobee.store.index.check import repair_index_file
from aerobee.store.index.index_file import IndexFile
from aerobee.store.index.index_service import IndexService
from aerobee.store.log.scan.resynchronise import Resynchroniser
from aerobee.store.recovery import recovery
from aerobee.store.recovery.cross_check import CrossCheck
from aerobee.store.segments import mapped_file_queue
from aerobee.store.segments.mapped_file import MappedFile


class Broken(NamedTuple):
    """The replacement of `holder.name`, and the beginning of the rows whose cases show it."""

    rows: str
    holder: Any
    name: str
    instead: Any
    #: How many of these cases are judged; 0 for all.
    most: int = 150
    #: The original whose cases show it; "" for all.
    image: str = ""


def _nothing(*_args: Any, **_named: Any) -> None:
    return None


def _never(*_args: Any, **_named: Any) -> bool:
    return False


def _always(*_args: Any, **_named: Any) -> bool:
    return True


def _no_resynchronisation(_: Any, _bad: int, limit: int) -> Iterator[None]:
    yield from ()
    return limit


def _believed(data: bytes) -> Any:
    """The offsets file without its checksum."""
    line = data.partition(b"\n")[0]
    try:
        return msgspec.json.decode(line, type=offsets_file.Offsets)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _marked_first(check: Callable[..., Any]) -> Callable[..., Any]:
    """`abort` is made before the start has looked at anything."""

    def take(lock: StoreLock) -> None:
        check(lock)
        lock.mark_open()

    return take


def _default_for_damaged(load: Callable[..., Any]) -> Callable[..., Any]:
    """An unreadable table is taken for a missing table, in silence."""

    def load_any(file: Any, parse: Any, default: Any, _rescue: Any = None) -> Any:
        file._sets_aside = False
        try:
            return load(file, parse, default)
        except StateFileError:
            return default

    return load_any


def _count_not_full(
    self: IndexService,
    most: int,
    is_in_doubt: Callable[[int, IndexFile], bool],
    check: Callable[[IndexFile], bool] = repair_index_file,
) -> int:
    """Count as the service does, but files before the newest need not be full."""
    for number, file in enumerate(self.files[:most]):
        if is_in_doubt(number, file) and not check(file):
            return number
    return most


RULES: dict[str, Broken] = {
    "resynchronisation": Broken(
        "log: bit of", Resynchroniser, "below_floor", _no_resynchronisation
    ),
    "a record has its CRC": Broken(
        "log: bit of", message_store, "crc_checks", lambda **_named: CHECK_NOTHING
    ),
    "torn tails are zeroed": Broken(
        "log: damage above", MappedFile, "zero_from", lambda _segment, _position: 0
    ),
    "a segment has its own name": Broken(
        "log: segment under", recovery, "check_segment_names", _nothing
    ),
    "a segment has its size": Broken(
        "log: segment of", mapped_file_queue, "check_file_size", _nothing
    ),
    "units are compared": Broken("queue: wrong entry", scrub_units, "is_same", _always),
    "a slot is never given twice": Broken(
        "queue: wrong entry",
        CrossCheck,
        "before_unsound_end",
        lambda _self, _queue, start: start,
        0,
        "clean",  # in the others something else notices it as well
    ),
    "a queue begins with its first message": Broken(
        "queue: file, queue", recovery.Recovery, "_beginning_is_gone", _never
    ),
    "an index file is full before the next begins": Broken(
        "index: older copy", IndexService, "_count_whole", _count_not_full
    ),
    # Nearly all that such a file may say wrongly is found out by other looks; so all cases of the
    # original that believes it most.
    "the offsets file has a checksum": Broken(
        "offsets: wrong", offsets_file, "decode", _believed, 0, "killed/0"
    ),
    "nothing changes before all is looked at": Broken(
        "log: last", StoreLock, "take", _marked_first(StoreLock.take)
    ),
    "damage is no absence": Broken(
        "config: ", JsonStateFile, "load", _default_for_damaged(JsonStateFile.load)
    ),
}


@contextlib.contextmanager
def broken(rule: str) -> Iterator[None]:
    """One of RULES does not hold in a `with` block; with "" all hold."""
    if not rule:
        yield
        return
    what = RULES[rule]
    with mock.patch.object(what.holder, what.name, what.instead):
        yield
