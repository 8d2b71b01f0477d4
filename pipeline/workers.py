"""Python workers of Spark: what is worth doing once in each of them.

PySpark's daemon collects garbage after every task that a worker does, and so goes through all that
was ever imported: 20 to 40 ms a task, which is as long as the task takes to read 100,000 messages.
"""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"
_frozen = False


def freeze_imports() -> None:
    """Leave what is there by now out of all later collections, once in a worker of Spark's daemon.

    To be called when everything heavy is imported. Elsewhere nothing happens: a program of its own
    decides on its own collections.
    """
    global _frozen
    if not _frozen and _is_worker():
        _frozen = True
        gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _DAEMON
