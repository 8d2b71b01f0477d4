"""The marks of an open store: the `lock` file against other processes, `abort` against crashes.

`lock` holds the word "lock"; byte 0 is locked as RocketMQ locks it, so that it and we exclude each
other. It is opened once and kept: closing any descriptor of it would give the lock away. Within one
process the system would grant it twice, hence the set of open directories.

`abort` is an empty file that exists while a store is open. Found at a start it says that the last
run did not end in order. It is made before the first change and removed as the last thing of a
clean stop.

Threads: the opener's; the set is guarded by a lock.
"""

import os
import threading

from aerobee.store.disk.files import Files
from aerobee.store.errors import StoreInUse

_CONTENT = b"lock"
_open_directories: set[str] = set()
_guard = threading.Lock()


class StoreLock:
    """The two files of one store directory."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._identity = os.path.realpath(root)
        self._path = os.path.join(root, "lock")
        self._abort_path = os.path.join(root, "abort")
        self._fd = -1
        self._listed = False

    def probe(self) -> None:
        """Ahead of `take`: raise StoreInUse if a broker has the directory, or OSError. Changes
        nothing."""
        self._enter()
        try:
            if self._files.exists(self._path) and not self._try_lock_to_read():
                raise self._in_use()
        finally:
            self.release()

    def take(self) -> None:
        """Lock the directory, which is made if it is not there. Raises StoreInUse or OSError."""
        self._enter()
        for changed in self._files.make_directories(self._root):
            self._files.sync_directory(changed)
        is_new = not self._files.exists(self._path)
        self._fd = self._files.open(self._path, create=is_new)
        if not self._files.try_lock(self._fd):
            raise self._in_use()
        if self._files.read(self._fd, 0, len(_CONTENT) + 1) != _CONTENT:
            self._files.set_size(self._fd, 0)
            self._files.write(self._fd, 0, _CONTENT)
            self._files.sync(self._fd)
            self._files.sync_directory(self._root)

    def take_to_read(self) -> bool:
        """Keep brokers out while the store is read; several may read. Changes nothing.

        Works where nothing can be written. False when there is no lock file: no broker has opened
        the directory yet, and a broker that opens it meanwhile is not noticed. Raises StoreInUse or
        OSError.
        """
        self._enter()
        if not self._files.exists(self._path):
            return False
        if not self._try_lock_to_read():
            raise StoreInUse(
                f"{self._root} is in use: a broker runs on it (its file 'lock' is locked). This "
                "command needs a store at rest; stop the broker first, or use a copy."
            )
        return True

    def _try_lock_to_read(self) -> bool:
        self._fd = self._files.open(self._path, read_only=True)
        return self._files.try_lock(self._fd, shared=True)

    def _in_use(self) -> StoreInUse:
        return StoreInUse(
            f"{self._root} is in use by another broker (its file 'lock' is locked). Stop that one "
            "first, or use another directory."
        )

    def _enter(self) -> None:
        with _guard:
            if self._identity in _open_directories:
                raise StoreInUse(f"{self._root} is already open in this process")
            _open_directories.add(self._identity)
            self._listed = True

    @property
    def file(self) -> tuple[str, int]:
        """The path of the lock file and its descriptor, -1 while it is not taken."""
        return self._path, self._fd

    def was_left_open(self) -> bool:
        """Whether the last run ended without `mark_clean`."""
        return self._files.exists(self._abort_path)

    def was_left_this_boot(self) -> bool:
        """Whether the run that left `abort` began after the machine came up, so that it has not
        gone down since. By the file's times; a copy made without keeping them looks the same."""
        return self.was_left_open() and self._files.made_and_left(self._abort_path)

    def mark_open(self) -> None:
        """From here on a crash is to be noticed."""
        if not self.was_left_open():
            self._files.close(self._files.open(self._abort_path, create=True))
            self._files.sync_directory(self._root)

    def mark_clean(self) -> None:
        """All is in order; the last change of a clean stop."""
        self._files.remove(self._abort_path)
        self._files.sync_directory(self._root)

    def release(self) -> None:
        """Unlock."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
        if self._listed:
            with _guard:
                _open_directories.discard(self._identity)
            self._listed = False
