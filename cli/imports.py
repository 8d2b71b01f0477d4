"""Imports without the collector of garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Look for no garbage meanwhile: what imports bring stays, and the looking took a tenth of a
    start. Nested, or where somebody has turned the collector off, it stays off."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
