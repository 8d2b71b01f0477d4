"""A limit on messages a second for a stream of Arrow batches, kept by cutting and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

# A batch is what is sent at once, so it is cut to what fits into this part of a second.
_TICKS = 10


def paced(
    batches: Iterator[pa.RecordBatch],
    rate: float,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """The same rows, at most `rate` of them a second on the average and about a tenth of that at
    once. What a slow reader did not use is not made up for."""
    assert rate > 0
    most = max(1, int(rate / _TICKS))
    due = now()
    for batch in batches:
        for first in range(0, batch.num_rows, most):
            left = due - now()
            if left > 0:
                wait(left)
            piece = batch.slice(first, most)
            due = max(due, now()) + piece.num_rows / rate
            yield piece
