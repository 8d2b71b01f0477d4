"""Runs a function in a process that then dies without a word, as a killed broker does.

A store opened in there ends as after kill -9: nothing is closed, its lock and mappings go with the
process. A signal (a fault in mapped memory) ends the child, not the tests.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ChildFailed(Exception):
    """The function raised, or its process died; the text says which and where."""


def in_child(function: Callable[[], T]) -> T:
    """The function's result, made in a child. Raises ChildFailed."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _run(function, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        raise ChildFailed(f"died of {signal.Signals(os.WTERMSIG(status)).name}")
    assert data, "the child said nothing"
    failed, value = pickle.loads(data)
    if failed:
        raise ChildFailed(value)
    return value  # type: ignore[no-any-return]


def _run(function: Callable[[], object], writing: int) -> None:
    """Never returns, whatever happens: one test run must not become two."""
    code = 1
    try:
        try:
            answer = (False, function())
        except BaseException:  # noqa: BLE001 - the parent raises it
            answer = (True, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        code = 0
    finally:
        os._exit(code)
