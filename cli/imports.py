"""What a command imports, imported quickly."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Look for no garbage while modules are imported, and later for none in what they brought: it
    stays, and the looking took a tenth of a start, at the end of a short command once more."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
