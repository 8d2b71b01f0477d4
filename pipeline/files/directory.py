"""Lists a store directory: the segments of its commit log, the files of its consume queues.

Only names and lengths are read here; `entries.py` reads queues, and `part_reader.py` the log. A
path is a directory of this machine or a URI that pyarrow knows (`s3://`, `gs://`, `hdfs://`,
`file://`). Nothing is opened for writing, no lock is taken and no file is made. Errors name paths
as the file system has them, never the URI, which may hold credentials.

A path may be the root of a store (`commitlog` and `consumequeue` below it) or a directory of
segments. Several roots are several stores. Several directories of segments are one log on several
disks (store/FORMAT.md 1.2), together with the root if one is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from aerobee.pipeline.errors import StoreReadError, known_names

if TYPE_CHECKING:
    from pyarrow import fs as pafs

NAME_DIGITS: Final = 20
_DLEDGER: Final = "dledger-"


class File(NamedTuple):
    """A segment or queue file: its path, its first byte's place in the log or queue, its length."""

    path: str
    start: int
    size: int

    @property
    def end(self) -> int:
        """The place after its last byte, counted as in its name."""
        return self.start + self.size


class FileSystemPlace(NamedTuple):
    """A file system: "" is this machine's, else a URI says which one."""

    uri: str

    @property
    def is_local(self) -> bool:
        """Whether files can be mapped, and reading them costs no round trip."""
        return not self.uri or self.uri.startswith("file:")

    @property
    def files(self) -> pafs.FileSystem:
        """The file system; a process opens it once."""
        return _open(self.uri)[0]

    def open(self, path: str) -> FileReader:
        """Open a file to read from. Raises StoreReadError if it is gone."""
        return FileReader(self, path)


class FileReader:
    """An open file; a context manager. All bytes of a store are read through this class."""

    def __init__(self, place: FileSystemPlace, path: str) -> None:
        self.path = path
        try:
            self._file = place.files.open_input_file(path)
        except FileNotFoundError:
            raise StoreReadError(
                f"{path} is gone since the files were listed (a broker removes old segments); "
                "load() again to read what is there now"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes from `position` on, fewer only at the end of the file."""
        found: bytes = self._file.read_at(count, position)
        return found


@lru_cache(maxsize=16)
def _open(uri: str) -> tuple[Any, str]:
    from pyarrow import fs as pafs
    from pyarrow.lib import ArrowException

    if not uri:
        return pafs.LocalFileSystem(), ""
    try:
        files, path = pafs.FileSystem.from_uri(uri)
    except (ArrowException, OSError, ValueError) as error:
        scheme = uri.partition(":")[0]
        kind = type(error).__name__
        raise StoreReadError(
            f"option path: pyarrow opens no file system of the scheme {scheme!r} ({kind}); known "
            "are file, s3, gs, hdfs, abfs, and directories of this machine"
        ) from None
    return files, path


def locate(given: str) -> tuple[FileSystemPlace, str]:
    """The file system of a given path, and the path in it. Raises StoreReadError."""
    if "://" in given or given.startswith("file:"):
        return FileSystemPlace(given), _open(given)[1].rstrip("/")
    return FileSystemPlace(""), os.path.abspath(given)


@dataclass(slots=True)
class Store:
    """A store: its segments in the order of the log; its consume queues are listed on demand."""

    name: str
    place: FileSystemPlace
    segments: tuple[File, ...]
    #: Directory of the consume queues; None in a store without it.
    queue_root: str | None
    #: Whether its broker runs, or did not end in order.
    was_left_open: bool
    _queues: dict[str | None, dict[tuple[str, int], tuple[File, ...]]] = field(default_factory=dict)

    @property
    def log_end(self) -> int:
        """The log offset after the last segment."""
        return self.segments[-1].end if self.segments else 0

    def topics(self) -> list[str]:
        """The topics that have consume queues."""
        if self.queue_root is None:
            return []
        return [name for name, is_file, _ in _children(self.place, self.queue_root) if not is_file]

    def queues(
        self, topics: Iterable[str] | None = None
    ) -> dict[tuple[str, int], tuple[File, ...]]:
        """The files of the queues (of these topics) in order, by topic and queue id."""
        if self.queue_root is None:
            return {}
        if topics is None:
            return self._listed(None)
        if None in self._queues:
            named = set(topics)
            return {key: files for key, files in self._queues[None].items() if key[0] in named}
        return {key: found for topic in topics for key, found in self._listed(topic).items()}

    def _listed(self, topic: str | None) -> dict[tuple[str, int], tuple[File, ...]]:
        if topic not in self._queues:
            assert self.queue_root is not None
            self._queues[topic] = list_queues(self.place, self.queue_root, topic)
        return self._queues[topic]


def find_stores(paths: Sequence[str]) -> list[Store]:
    """The stores in these directories. Raises StoreReadError, naming the path."""
    roots: list[_Found] = []
    logs: list[_Found] = []
    for given in paths:
        found = _look(*locate(given))
        (roots if found.is_root else logs).append(found)
    if len(roots) > 1 and logs:
        raise StoreReadError(
            f"option path: {logs[0].path} holds segments, and {len(roots)} stores are given: which "
            "one it belongs to is not known; read each store by itself"
        )
    if not roots:
        return [_store(logs[0], logs)]
    return [_store(root, logs) for root in roots]


class _Found(NamedTuple):
    place: FileSystemPlace
    path: str
    names: frozenset[str]
    segments: tuple[File, ...]
    is_root: bool


def _look(place: FileSystemPlace, path: str) -> _Found:
    children = _children(place, path)
    names = frozenset(name for name, _, _ in children)
    segments = _segments(path, children)
    is_root = bool(names & {"commitlog", "consumequeue"}) and not segments
    wrapped = sorted(name for name in names if name.startswith(_DLEDGER))
    if wrapped and not segments:
        raise StoreReadError(
            f"{path} holds a DLedger log ({wrapped[0]}): its records are wrapped in entries of "
            "another format, which is not supported. A commit log from before can be read by "
            "giving its own directory"
        )
    if not is_root and not segments:
        raise StoreReadError(
            f"{path} is no store: there is neither a directory commitlog or consumequeue nor a "
            f"segment (a file named by {NAME_DIGITS} digits) in it"
        )
    return _Found(place, path, names, segments, is_root)


def _store(main: _Found, logs: Sequence[_Found]) -> Store:
    segments = [file for log in logs for file in log.segments]
    if main.is_root and "commitlog" in main.names:
        own = f"{main.path}/commitlog"
        segments += _segments(own, _children(main.place, own))
    elif main.is_root and not logs:
        raise StoreReadError(
            f"{main.path} has no directory commitlog; if the log is elsewhere (storePathCommitLog),"
            " give its directory in option path as well"
        )
    if any(log.place.uri.partition(":")[0] != main.place.uri.partition(":")[0] for log in logs):
        raise StoreReadError("option path: the directories of one log are on different systems")
    segments.sort(key=lambda file: file.start)
    for one, other in pairwise(segments):
        if one.start == other.start:
            raise StoreReadError(f"{one.path} and {other.path} are the same segment, found twice")
    queue_root = f"{main.path}/consumequeue" if main.is_root else None
    return Store(
        name=main.path,
        place=main.place,
        # A crash between making a file and giving it its length leaves a file without a byte.
        segments=tuple(file for file in segments if file.size),
        queue_root=queue_root if "consumequeue" in main.names else None,
        was_left_open="abort" in main.names,
    )


def _segments(path: str, children: Iterable[tuple[str, bool, int]]) -> tuple[File, ...]:
    return tuple(
        File(f"{path}/{name}", int(name), size)
        for name, is_file, size in children
        if is_file and _is_number(name)
    )


def _is_number(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _children(place: FileSystemPlace, path: str) -> list[tuple[str, bool, int]]:
    """The entries of a directory as (name, whether it is a file, size), by name."""
    from pyarrow import fs as pafs

    try:
        found = place.files.get_file_info(pafs.FileSelector(path))
    except FileNotFoundError:
        raise StoreReadError(f"{path} does not exist") from None
    except OSError as error:
        raise StoreReadError(f"{path} cannot be read: {error}") from error
    return sorted(
        (one.base_name, one.type == pafs.FileType.File, one.size or 0)
        for one in found
        if one.base_name
    )


def list_queues(
    place: FileSystemPlace, root: str, topic: str | None = None
) -> dict[tuple[str, int], tuple[File, ...]]:
    """The files of the consume queues below `root` (of this topic), by topic and queue id."""
    from pyarrow import fs as pafs

    folder = root if topic is None else f"{root}/{topic}"
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=True)
    queues: dict[tuple[str, int], list[File]] = {}
    for one in place.files.get_file_info(selector):
        parts = one.path[len(root) :].strip("/").split("/")
        usable = len(parts) == 3 and parts[1].isdecimal() and _is_number(parts[2])
        if usable and one.type == pafs.FileType.File and one.size:
            file = File(one.path, int(parts[2]), one.size)
            queues.setdefault((parts[0], int(parts[1])), []).append(file)
    return {key: tuple(sorted(found, key=lambda file: file.start)) for key, found in queues.items()}


def require_topics(stores: Sequence[Store], topics: Iterable[str]) -> None:
    """Raise StoreReadError for a topic that has no consume queue, with the nearest that has."""
    known = sorted({topic for store in stores for topic in store.topics()})
    for topic in sorted(topics):
        if topic not in known:
            hint = known_names(topic, known) if known else "; there are no consume queues at all"
            raise StoreReadError(f"option topic: {topic!r} has no consume queue{hint}")
