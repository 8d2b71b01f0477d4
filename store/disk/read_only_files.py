"""The operating system for whoever only looks: every file is opened and mapped read-only.

For plans and checks, which use the parts a broker is made of: those open files to write to them
later, and that must work where nothing can be written, and change nothing anywhere.
"""

import mmap

from aerobee.store.disk.files import Files


class ReadOnlyFiles(Files):
    """As Files; a write to what it has opened fails."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """A descriptor of the existing `path` to read with."""
        return super().open(path, read_only=True)

    def map(self, fd: int, size: int, *, read_only: bool = False) -> mmap.mmap:
        """The whole file as shared memory that cannot be written."""
        return super().map(fd, size, read_only=True)
