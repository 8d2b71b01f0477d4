"""How long work on a worker thread reaches the thread that owns the store."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class OnOwner(Protocol):
    """Runs a call on the owner's thread and gives its result, or raises what it raised."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


def here(call: Callable[[], T], /) -> T:
    """For an owner that does the worker's part itself."""
    return call()
