"""A program run inside Spark's driver, as `__main__` and in the place of who started it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from aerobee.pipeline.launch.modules import delete_at_exit
from aerobee.pipeline.launch.one_line import show_ours_in_one_line

_INPUT: Final = "<stdin>"


def run() -> None:
    """Run what the arguments of this process name, or standard input if there are none; returns
    when it has ended, and raises what it raises."""
    delete_at_exit()
    program = vars(sys.modules["__main__"])
    if sys.argv[1:]:
        path = sys.argv[1]
        source = Path(path).read_bytes()
        sys.argv = sys.argv[1:]
        folder, names = os.path.dirname(os.path.abspath(path)), {"__file__": path}
        more: dict[str, Any] = {}
    else:
        path, source = _INPUT, sys.stdin.buffer.read()
        sys.argv = ["-"]
        folder, names = "", {}
        more = _session()
    sys.path[0] = folder
    kept = {"__name__": "__main__", "__builtins__": __builtins__, "__doc__": None}
    program.clear()
    program.update(kept | names | more)
    show_ours_in_one_line(path)
    exec(compile(source, path, "exec", dont_inherit=True), program)


def _session() -> dict[str, Any]:
    """What a shell has: the session, as the environment describes it."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    return {"spark": spark, "sc": spark.sparkContext, "sql": spark.sql}
