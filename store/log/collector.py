"""Pauses the garbage collector while many objects are made that all stay.

It would look at every object again and again, find nothing, and stop all threads meanwhile: two
thirds of the time that such work takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection within the `with` block; a collector that was off before stays off.

    Any thread may use it, and the collector is off for all of them. If two blocks overlap, the
    first that began turns it on again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
