"""The directories of the commit log: where its segments are, and where the next one goes.

`storePathCommitLog` may name several directories, and `readOnlyCommitLogStorePaths` some whose
segments are read but which get no new ones: a full or failing disk on its way out. A directory may
be in both lists, which is how a directory is retired. Segment n of the log (n = start / size) goes
to sorted(available)[n % count], available being the writable directories except those fuller than
the force-clean ratio, or all of them if that leaves none (FORMAT.md 1.2; MultiPathMappedFileQueue).

The reference goes on writing to a last segment in a directory that has become read-only. Here it is
finished instead, with the 8 bytes that end a segment (`opening.py`), and the log goes on elsewhere:
"read-only" is the operator's word.

Threads: any; nothing changes after building.
"""

import logging
import os
from collections.abc import Iterator, Sequence

from aerobee.store.disk.files import Files
from aerobee.store.disk.segment_names import segment_name
from aerobee.store.errors import StoreLayoutError

log = logging.getLogger("aerobee.store")


class LogPaths:
    """Writable and read-only directories; `force_ratio` (0 to 1) is the use at which a directory
    counts as full."""

    def __init__(
        self,
        files: Files,
        directories: Sequence[str],
        read_only: Sequence[str],
        segment_bytes: int,
        force_ratio: float,
    ) -> None:
        self._files = files
        self._segment_bytes = segment_bytes
        self._force_ratio = force_ratio
        self.read_only = tuple(sorted(set(read_only)))
        self.writable = tuple(sorted(set(directories) - set(read_only)))
        self.all = tuple(sorted({*directories, *read_only}))

    def check(self) -> None:
        """Refuse directories that cannot be one log; changes nothing. Raises StoreLayoutError."""
        if not self.writable:
            raise StoreLayoutError(
                f"all directories of the commit log ({', '.join(self.all)}) are read-only "
                "(read_only_commit_log_paths); add a directory for new segments to commit_log_path"
            )
        for path in self.read_only:
            if not self._files.is_directory(path):
                raise StoreLayoutError(
                    f"{path} (read_only_commit_log_paths) is not there. Is its volume not mounted? "
                    "If its segments have all been deleted, take it out of the setting."
                )
        seen: dict[str, str] = {}
        for path in self.all:
            other = seen.setdefault(os.path.realpath(path), path)
            if other != path:
                raise StoreLayoutError(f"{other} and {path} are the same directory; name it once")

    def path_for(self, start: int) -> str:
        """The path of the new segment that begins at `start`. Asks how full the disks are."""
        directories = self._available() or self.writable
        number = start // self._segment_bytes
        return os.path.join(directories[number % len(directories)], segment_name(start))

    def _available(self) -> tuple[str, ...]:
        if len(self.writable) == 1:
            return self.writable
        return tuple(path for path in self.writable if not self._is_full(path))

    def _is_full(self, path: str) -> bool:
        # A directory that is missing is made on the disk of the directory that holds it.
        while not self._files.exists(path):
            path = os.path.dirname(path)
        try:
            return self._files.used_ratio(path) > self._force_ratio
        except OSError as error:
            log.warning("cannot tell how full the disk is, not used path=%s %s", path, error)
            return True

    def is_read_only(self, path: str) -> bool:
        """Whether the segment at `path` is in a directory that gets no new segments."""
        return os.path.dirname(path) in self.read_only

    def names(self) -> Iterator[tuple[str, str]]:
        """(directory, name) of everything in the directories."""
        for directory in self.all:
            for name in self._files.names(directory):
                yield directory, name

    def absent(self) -> str:
        """A sentence about listed directories that are missing, where the lost segments may be."""
        gone = [path for path in self.all if not self._files.is_directory(path)]
        if not gone or len(self.all) == 1:
            return ""
        return f" {', '.join(gone)} is not there: is its volume not mounted?"

    def __str__(self) -> str:
        return ", ".join(self.all)
