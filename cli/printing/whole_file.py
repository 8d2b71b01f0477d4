"""A new file that is there whole or not at all: it gets its name when all of it is on the disk.

Until then it is `NAME.part` in the same directory, which a command that was killed may leave, and
the next one of the same name takes away. A file that exists is never written over.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aerobee.cli.printing.output import USAGE, CommandFailed
from aerobee.file_replacement import sync_directory

# File systems without hard links.
_NO_LINKS: Final = frozenset((errno.EPERM, errno.ENOTSUP, errno.ENOSYS))


class WholeFile:
    """A file under construction, for a `with` block: an error inside takes it away.

    Raises CommandFailed for a name that is taken, and for what the operating system refuses.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._part = self._path.with_name(self._path.name + ".part")
        #: Bytes written so far.
        self.size = 0

    def __enter__(self) -> Self:
        if os.path.lexists(self._path):
            raise self._taken()
        try:
            self._part.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._part, flags, 0o666), "wb")
        except OSError as error:
            raise self._failed(error) from error
        return self

    def write(self, data: bytes) -> None:
        """Add bytes."""
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from error
        self.size += len(data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        except FileExistsError:
            raise self._taken() from None
        except OSError as failure:
            raise self._failed(failure) from failure
        finally:
            self._drop()

    def _finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        # Unlike a rename this takes nobody's file away that has come meanwhile.
        try:
            os.link(self._part, self._path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(self._path):
                raise FileExistsError(self._path) from error
            os.rename(self._part, self._path)
        self._part.unlink(missing_ok=True)
        sync_directory(self._path.parent)

    def _drop(self) -> None:
        # Bytes that it could not write are not wanted any more.
        with suppress(OSError):
            self._file.close()
        try:
            self._part.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from error

    def _taken(self) -> CommandFailed:
        return CommandFailed(f"{self._path} exists already: name a new file", USAGE)

    def _failed(self, error: OSError) -> CommandFailed:
        return CommandFailed(
            f"{self._path} cannot be written: {error.strerror}; nothing of it is left, and no "
            "message was changed"
        )
