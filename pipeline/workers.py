"""Python workers of Spark: the steps worth doing once in each of them, and how they report errors.

PySpark's daemon collects garbage after every task that a worker does, and so goes through all that
was ever imported: 20 to 40 ms a task, which is as long as the task takes to read 100,000 messages.

Answers of brokers and batches of rows are megabytes, made and freed all the time. By itself glibc
gives each block back to the kernel, which clears the pages of the next block: a third of a reading
task's processor time. So a worker keeps what it has freed, up to 64 MiB.

A worker sends the text of an error to the driver, with its frames, unless SPARK_HIDE_TRACEBACK is
in its environment at that moment (PySpark 4.0 to 4.3; the setting hideTraceback puts it there, but
not for the process that plans a stream). Frames of ours say nothing to a user that the sentence of
the error does not say, so an error of ours sets the variable itself. A worker that reported an
error ends, so it hides nothing else: errors of a user's own functions, and bugs, keep their frames.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

_DAEMON = "pyspark.daemon"
_WORKERS = "pyspark."
_HIDE_FRAMES = "SPARK_HIDE_TRACEBACK"
_OURS = "aerobee.pipeline."
#: The methods of a source, a reader or a writer that Spark calls.
_CALLS: Final = frozenset(
    {"schema", "reader", "streamReader", "writer", "streamWriter", "pushFilters", "partitions"}
    | {"read", "write", "commit", "abort", "initialOffset", "latestOffset", "stop"}
    | {"getDefaultReadLimit", "prepareForTriggerAvailableNow", "reportLatestOffset"}
)
_Class = TypeVar("_Class", bound=type)
_prepared = False
# Parameters of mallopt(3) and their values: blocks of _MAPPED_BYTES or more are mapped by
# themselves (glibc takes no higher value), and _KEPT_BYTES of free memory stay.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_BYTES: Final = 32 << 20
_KEPT_BYTES: Final = 64 << 20


def prepare_worker() -> None:
    """Once in a worker of Spark's daemon: leave all present objects out of later collections, and
    keep freed memory.

    Call it when everything heavy is imported. Elsewhere it does nothing: another program decides on
    its own collections and its own memory.
    """
    global _prepared
    if not _prepared and _is_worker():
        _prepared = True
        gc.freeze()
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def plain_errors(cls: _Class) -> _Class:
    """A class whose errors of ours reach the user as one sentence: for all that Spark calls."""
    for name, method in list(vars(cls).items()):
        if name in _CALLS and inspect.isfunction(method):
            setattr(cls, name, _plain(method))
    return cls


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _without_frames():
                yield from method(*args, **kwargs)

        return generate

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _without_frames():
            return method(*args, **kwargs)

    return call


@contextmanager
def _without_frames() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith(_OURS) and _main_name().startswith(_WORKERS):
            os.environ.setdefault(_HIDE_FRAMES, "1")
        raise


def _is_worker() -> bool:
    return _main_name() == _DAEMON


def _main_name() -> str:
    """The module that this process runs, as `python -m` was told; else nothing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else spec.name
