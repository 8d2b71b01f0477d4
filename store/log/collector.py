"""The collector of garbage, out of the way while many objects are made that all stay.

It would look at every one of them again and again, find nothing, and hold up all threads meanwhile:
two thirds of the time that such work takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection within the `with` block; one that was off before it stays off.

    Any thread, and it is off for all of them. Of two blocks at once the one that began first turns
    it on again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
