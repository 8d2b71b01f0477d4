"""Directories of Spark's file systems, which are reached through its JVM.

A checkpoint and a table are where Spark says, and Spark knows them by Hadoop's file systems
(`s3a://`, `hdfs://`, `abfss://`), which pyarrow may not know. On this machine `Target` promises
more: written files outlive a power cut.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.targets.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: File systems on which a directory is renamed in one act.
_RENAMING: Final = ("hdfs", "viewfs", "file")


class HadoopTarget:
    """A directory of one of Hadoop's file systems; its methods are those of `Target`. Raises
    OSError for what the file system refuses."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._jvm: Any = spark._jvm
        self._root = uri.rstrip("/")
        self.renames = uri.partition("://")[0] in _RENAMING
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        try:
            self._files: Any = self._path("").getFileSystem(hadoop)
        except Exception as error:
            raise _refused(error, uri) from error

    def uri(self, path: str) -> str:
        return f"{self._root}/{path}"

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
        self._files.mkdirs(self._path(posixpath.dirname(to)))
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


AnyTarget = Target | HadoopTarget


def open_target(spark: SparkSession, place: str) -> AnyTarget:
    """The directory of that place, which need not be there. Raises JobFailed for an unknown kind
    of file system, OSError for what one refuses."""
    return HadoopTarget(spark, place) if "://" in place else Target(place)


def _refused(error: Exception, uri: str) -> Exception:
    if "UnsupportedFileSystem" in str(error) or "No FileSystem for scheme" in str(error):
        scheme = uri.partition("://")[0]
        return JobFailed(
            f"{uri}: Spark has no file system {scheme}; name its package with --packages (for s3a "
            "org.apache.hadoop:hadoop-aws of Spark's Hadoop version)"
        )
    return OSError(f"{uri}: {error}")
