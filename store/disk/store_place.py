"""Is the store still where it was opened?

A directory that is removed, moved away or covered by another mount takes nothing from a process
that has its files open: it would go on acknowledging messages that nobody can ever read again. So
what the paths name is compared, some times a second, with what was opened: the lock file and the
segment that is written by their descriptors, directories by what they were at first. When they
differ the store stops as after a failed sync, and nothing is written to those paths any more:
whatever stands there now is somebody else's. Until then nothing is begun anew there either: what a
running store makes it makes below directories that have to be there (`Files.make_directories`), and
a file that is not found has the place looked at, at once (`Health.poison`).

Threads: any, one at a time (`Health.look_whether_there`).
"""

import errno
import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from aerobee.store.disk.files import Files

#: With any of these a path names nothing that was ours; another error says nothing about that.
GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP))


class HasOpenFiles(Protocol):
    """Knows files of the store that are open."""

    def open_files(self) -> Iterable[tuple[str, int]]:
        """Their paths, with their descriptors."""


class PlaceWatch:
    """Compares `directories`, as they are at the first look, and the open files of `store`."""

    def __init__(self, files: Files, directories: Sequence[str], store: HasOpenFiles) -> None:
        self._files = files
        self._store = store
        self._paths = tuple(directories)
        self._directories: list[tuple[str, tuple[int, int]]] | None = None

    def problem(self) -> str | None:
        """Says which path names something else than was opened; None if none does. One caller at a
        time."""
        if self._directories is None:
            there = [path for path in self._paths if self._files.is_directory(path)]
            self._directories = [(path, self._files.node(path)) for path in there]
        for path, node in self._directories:
            if (problem := self._differs(path, node)) is not None:
                return problem
        for path, descriptor in self._store.open_files():
            if descriptor >= 0:
                node = self._files.node_of(descriptor)
                if (problem := self._differs(path, node)) is not None:
                    return problem
        return None

    def _differs(self, path: str, node: tuple[int, int]) -> str | None:
        try:
            found = self._files.node(path)
        except OSError as error:
            if error.errno not in GONE:
                return None
            return f"{path} is not there any more ({os.strerror(error.errno or 0)})"
        if found != node:
            return f"{path} is another one than was opened: it was replaced, or mounted over"
        return None
