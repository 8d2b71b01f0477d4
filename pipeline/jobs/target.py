"""The directory an archive or a result is written to: of this machine, or a URI pyarrow knows.

The few operations a ledger needs, with their promises: `write_new` makes a whole file or none and
says whether it was the one that did; `move` is one act on a local file system and one object after
the other elsewhere; `sync` outlives a power cut (object stores need none).

Paths are relative to the directory.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from pathlib import Path

from pyarrow import fs as pafs

from aerobee.file_replacement import write_synced


class Target:
    """One directory. Raises OSError for what the file system refuses."""

    def __init__(self, given: str) -> None:
        if "://" in given:
            self._files, self.root = pafs.FileSystem.from_uri(given)
        else:
            self._files, self.root = pafs.LocalFileSystem(), os.path.abspath(given)
        self.given = given.rstrip("/")
        self._is_local = isinstance(self._files, pafs.LocalFileSystem)

    def uri(self, path: str) -> str:
        """The path as Spark takes it."""
        if "://" in self.given:
            return f"{self.given}/{path}"
        return f"file://{self.path(path)}"

    def path(self, path: str) -> str:
        """The path in the file system."""
        return f"{self.root}/{path}" if path else self.root

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        found: bool = self._files.get_file_info(self.path(path)).type != pafs.FileType.NotFound
        return found

    def read(self, path: str) -> bytes:
        """A whole file."""
        with self._files.open_input_stream(self.path(path)) as opened:
            data: bytes = opened.read()
        return data

    def write_new(self, path: str, data: bytes) -> bool:
        """Make a file with that content; False if there is one of that name, which stays.

        Atomic on a local file system; elsewhere two writers at the same moment are not noticed.
        """
        place = self.path(path)
        self._files.create_dir(posixpath.dirname(place), recursive=True)
        if self._is_local:
            return _write_local(place, data)
        if self.exists(path):
            return False
        with self._files.open_output_stream(place) as opened:
            opened.write(data)
        return True

    def move(self, path: str, to: str) -> None:
        """Give a file or a directory another name; a file that has that name is replaced."""
        self._files.create_dir(posixpath.dirname(self.path(to)), recursive=True)
        self._files.move(self.path(path), self.path(to))

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, if it is there."""
        if self.exists(path):
            self._files.delete_dir(self.path(path))

    def names(self, path: str) -> list[str]:
        """What lies in a directory itself; nothing if it is not there."""
        selector = pafs.FileSelector(self.path(path), allow_not_found=True)
        return [one.base_name for one in self._files.get_file_info(selector)]

    def sizes(self, path: str) -> dict[str, int]:
        """The files below a directory, by path, with their lengths; none if it is not there."""
        selector = pafs.FileSelector(self.path(path), allow_not_found=True, recursive=True)
        return {
            one.path[len(self.root) + 1 :]: one.size or 0
            for one in self._files.get_file_info(selector)
            if one.type == pafs.FileType.File
        }

    def sync(self, paths: Iterable[str]) -> None:
        """Files, and the directories they are in up to the target, are on the disk."""
        if not self._is_local:
            return
        folders = set()
        for path in paths:
            _sync(self.path(path))
            folder = posixpath.dirname(self.path(path))
            while folder.startswith(self.root):
                folders.add(folder)
                folder = posixpath.dirname(folder)
        for folder in sorted(folders, reverse=True):
            _sync(folder)


def _write_local(place: str, data: bytes) -> bool:
    aside = f"{place}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    write_synced(Path(aside), data, new=True)
    try:
        # Unlike a rename, a link never replaces.
        os.link(aside, place)
    except FileExistsError:
        return False
    finally:
        os.remove(aside)
    _sync(os.path.dirname(place))
    return True


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
