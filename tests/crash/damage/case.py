"""A case: one way of damaging one file of one original, and the records that it hits."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash.damage.originals import Original, Record

Apply = Callable[[Path], None]
Around = Callable[[Path], contextlib.AbstractContextManager[None]]
#: A user and group without rights.
NOBODY = 65534


@dataclass(frozen=True)
class Case:
    """`kind` is a row of outcomes.py; `hit` are the records whose bytes are damaged."""

    image: str
    kind: str
    what: str
    apply: Apply
    hit: frozenset[int] = frozenset()
    #: The file a refusal or report has to name, relative to the store.
    file: str = ""
    #: The surroundings while the store is started.
    around: Around = contextlib.nullcontext
    #: The store is started by `NOBODY`.
    as_nobody: bool = False
    #: The damaged tables of a case of `config_cases.py`.
    tables: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Names the case over all runs with the same seed."""
        return f"{self.image}/{self.kind}/{self.what}"


class Heard(logging.Handler):
    """Everything that was said from WARNING on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what is said in a `with` block, so that nobody else does."""
        logger = logging.getLogger("aerobee")
        before, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = before


def touched(original: Original, spans: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Numbers of the records that have a byte in any of the log's [start, end)."""
    return frozenset(
        one.number
        for start, end in spans
        for one in original.records
        if one.start < end and start < one.end
    )


# --- ways of damaging -------------------------------------------------------------------------


def patch(root: Path, name: str, position: int, data: bytes) -> None:
    fd = os.open(root / name, os.O_RDWR)
    os.pwrite(fd, data, position)
    os.close(fd)


def flip_bits(root: Path, name: str, bits: Iterable[tuple[int, int]]) -> None:
    """Flip (position, mask) each."""
    fd = os.open(root / name, os.O_RDWR)
    for position, mask in bits:
        os.pwrite(fd, bytes([os.pread(fd, 1, position)[0] ^ mask]), position)
    os.close(fd)


def truncate(root: Path, name: str, size: int) -> None:
    """Cut or lengthen with zeros."""
    os.truncate(root / name, size)


def append(root: Path, name: str, data: bytes) -> None:
    with open(root / name, "ab") as file:
        file.write(data)


def remove(root: Path, name: str) -> None:
    path = root / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def make_directory(root: Path, name: str) -> None:
    (root / name).unlink(missing_ok=True)
    (root / name).mkdir()


def link(root: Path, name: str) -> None:
    """The file moves away, a symbolic link to it stays."""
    target = root.parent / (root.name + "-elsewhere")
    os.rename(root / name, target)
    (root / name).symlink_to(target)


def dangle(root: Path, name: str) -> None:
    """A symbolic link to nothing, as to a volume that is not mounted."""
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to(root.parent / "not-mounted" / "file")


def swap(root: Path, one: str, other: str) -> None:
    os.rename(root / one, root / "swapped")
    os.rename(root / other, root / one)
    os.rename(root / "swapped", root / other)


def replace(root: Path, name: str, data: bytes) -> None:
    (root / name).write_bytes(data)


def place(record: Record, segment_bytes: int) -> tuple[str, int]:
    """Segment file and position of a record."""
    start = record.start // segment_bytes * segment_bytes
    return f"commitlog/{start:020d}", record.start - start
