"""Directories that a stream keeps small files in: of this machine, or of Spark's file systems.

A checkpoint and a table are where Spark says, and Spark knows them by Hadoop's file systems
(`s3a://`, `hdfs://`, `abfss://`), which pyarrow may not; so those are reached through the JVM. On
this machine `Target` has stronger promises: what is written outlives a power cut.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from aerobee.pipeline.jobs.archives.target import Target
from aerobee.pipeline.jobs.result import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: File systems on which a directory is renamed in one act.
_RENAMING: Final = ("hdfs", "viewfs", "file")


class Folder(Protocol):
    """One directory; paths are relative to it, "" is itself. See `Target`."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""

    def read(self, path: str) -> bytes:
        """A whole file."""

    def write_new(self, path: str, data: bytes) -> bool:
        """Make a whole file; False if there is one of that name, which stays."""

    def names(self, path: str) -> list[str]:
        """What lies in a directory itself; nothing if it is not there."""

    def move(self, path: str, to: str) -> None:
        """Give a file or a directory another name, which nothing has."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, if it is there."""

    def sizes(self, path: str) -> dict[str, int]:
        """The files below a directory with their lengths."""

    def sync(self, paths: Iterable[str]) -> None:
        """Files are on the disk."""


class HadoopFolder:
    """A directory of one of Hadoop's file systems. Raises OSError for what it refuses."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._jvm: Any = spark._jvm
        self._root = uri.rstrip("/")
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        try:
            self._files: Any = self._path("").getFileSystem(hadoop)
        except Exception as error:
            raise _refused(error, uri) from error

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def read(self, path: str) -> bytes:
        stream = self._files.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).encode()
        finally:
            stream.close()

    def write_new(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        aside = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
        stream = self._files.create(self._path(aside), False)
        stream.write(bytearray(data))
        stream.close()
        if self._files.rename(self._path(aside), self._path(path)):
            return True
        self._files.delete(self._path(aside), False)
        return False

    def names(self, path: str) -> list[str]:
        if not self.exists(path):
            return []
        return [one.getPath().getName() for one in self._files.listStatus(self._path(path))]

    def move(self, path: str, to: str) -> None:
        parent = posixpath.dirname(to)
        self._files.mkdirs(self._path(parent))
        if not self._files.rename(self._path(path), self._path(to)):
            raise OSError(f"{self._root}/{path} cannot be renamed to {to}")

    def remove_tree(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def sizes(self, path: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for one in self._files.listStatus(self._path(path)):
            name = posixpath.join(path, one.getPath().getName())
            if one.isDirectory():
                found |= self.sizes(name)
            else:
                found[name] = one.getLen()
        return found

    def sync(self, paths: Iterable[str]) -> None:
        """A file that was closed is there."""

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{path}" if path else self._root)


def open_folder(spark: SparkSession, place: str) -> Folder:
    """The directory of that place, which need not be there. Raises JobFailed for an unknown kind
    of file system, OSError for what one refuses."""
    return HadoopFolder(spark, place) if "://" in place else Target(place)


def renames_at_once(place: str) -> bool:
    """Whether a directory there gets another name in one act, for all readers."""
    return "://" not in place or place.partition("://")[0] in _RENAMING


def _refused(error: Exception, uri: str) -> Exception:
    if "UnsupportedFileSystem" in str(error) or "No FileSystem for scheme" in str(error):
        scheme = uri.partition("://")[0]
        return JobFailed(
            f"{uri}: Spark has no file system {scheme}; name its package with --packages (for s3a "
            "org.apache.hadoop:hadoop-aws of Spark's Hadoop version)"
        )
    return OSError(f"{uri}: {error}")


class Notes:
    """One small document of a directory, a new file for each of its versions: `NAME-0.json`, ...

    The newest one counts. A version appears whole or not at all, so a kill leaves the one before.
    """

    def __init__(self, folder: Folder, within: str, name: str) -> None:
        self._folder = folder
        self._within, self._name = within, name

    def latest(self) -> dict[str, Any] | None:
        """The newest version; None if there is none. Raises JobFailed if it cannot be read."""
        numbers = self._numbers()
        if not numbers:
            return None
        path = self._path(max(numbers))
        try:
            found: dict[str, Any] = json.loads(self._folder.read(path))
        except ValueError as error:
            raise JobFailed(f"{path} cannot be read ({error}); restore it from a backup") from error
        return found

    def write(self, document: dict[str, Any]) -> bool:
        """The next version; False if somebody else made it at the same time."""
        number = max(self._numbers(), default=-1) + 1
        text = json.dumps(document, ensure_ascii=False, indent=1)
        return self._folder.write_new(self._path(number), text.encode())

    def _numbers(self) -> list[int]:
        begin, end = f"{self._name}-", ".json"
        return [
            int(name[len(begin) : -len(end)])
            for name in self._folder.names(self._within)
            if name.startswith(begin) and name.endswith(end)
        ]

    def _path(self, number: int) -> str:
        return f"{self._within}/{self._name}-{number}.json"
