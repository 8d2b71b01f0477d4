"""A directory that a job writes to: of this machine, or a URI that pyarrow knows.

Its operations are those that a ledger needs, with their promises: `write_new` makes a whole file or
no file, and says whether this call made it; `publish` gives a file its place, by a rename where
that is one act (local, HDFS), by a copy on object stores, which cannot rename; after `sync` files
outlive a power cut (object stores need none).

Paths are relative to the directory.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyarrow import fs as pafs

from aerobee.file_replacement import write_synced
from aerobee.pipeline.jobs.targets.s3 import creator

_THREADS: Final = 16


class Target:
    """One directory. Raises OSError for what the file system refuses."""

    def __init__(self, given: str) -> None:
        if "://" in given:
            self._files, root = pafs.FileSystem.from_uri(given)
            self.root = root.rstrip("/")
        else:
            self._files, self.root = pafs.LocalFileSystem(), os.path.abspath(given)
        self._given = given
        kind = self._files.type_name
        self._is_local = kind == "local"
        #: Whether a file gets its place by another name, so that it is not where it was any more.
        self.renames = kind in ("local", "hdfs")
        self._create = creator(given) if kind == "s3" else None

    def uri(self, path: str) -> str:
        """The path as Spark takes it, which has keys and servers from its own settings."""
        if "://" not in self._given:
            return f"file://{self.path(path)}"
        parts = urlsplit(self._given)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path.rstrip('/')}/{path}"

    @property
    def name(self) -> str:
        """For people: without keys."""
        return self.uri("").rstrip("/") if "://" in self._given else self._given

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

    def read_all(self, paths: Sequence[str]) -> list[bytes]:
        """Whole files, several at once where each is a round trip."""
        if self._is_local or len(paths) < 2:
            return [self.read(path) for path in paths]
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(self.read, paths))

    def write_new(self, path: str, data: bytes) -> bool:
        """Make a file with that content; False if a file has that name, which stays.

        Atomic on a local file system, and on S3 with boto3 (s3.py); elsewhere two writers at the
        same moment are not noticed.
        """
        place = self.path(path)
        self._make_folder(place)
        if self._is_local:
            return _write_local(place, data)
        if self._create is not None:
            return self._create(place, data)
        if self.exists(path):
            return False
        with self._files.open_output_stream(place) as opened:
            opened.write(data)
        return True

    def move(self, path: str, to: str) -> None:
        """Give a file or a directory another name; a file that has that name is replaced."""
        self._make_folder(self.path(to))
        self._files.move(self.path(path), self.path(to))

    def publish(self, path: str, to: str) -> None:
        """Give a file its place; a file that is there is replaced. Where nothing is renamed, it
        also stays where it was."""
        if self.renames:
            self.move(path, to)
        else:
            self._files.copy_file(self.path(path), self.path(to))

    def _make_folder(self, place: str) -> None:
        """Object stores need no directory, and an object that stands for it would be in the way."""
        if self.renames:
            self._files.create_dir(posixpath.dirname(place), recursive=True)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, if it is there."""
        if self.exists(path):
            self._files.delete_dir(self.path(path))

    def names(self, path: str) -> list[str]:
        """The names in a directory itself; empty without the directory."""
        selector = pafs.FileSelector(self.path(path), allow_not_found=True)
        return [one.base_name for one in self._files.get_file_info(selector)]

    def sizes(self, path: str) -> dict[str, int]:
        """The files below a directory, by path, with their lengths; empty without the directory."""
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
