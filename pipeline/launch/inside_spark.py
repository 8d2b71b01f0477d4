"""The code of a launch that runs inside the Python of Spark's driver: a shell, or a program.

A shell gets Spark's own shell and a hint how a topic is read; a stream that ends with an error says
so when it ends, whether it is awaited or not. A program runs as `__main__`, in the place of the
file that started it. In both an error of ours is one line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from aerobee.pipeline.brokers.broker_options import NAME_SERVERS
from aerobee.pipeline.errors import sentence_in
from aerobee.pipeline.launch.command import USER_STARTUP
from aerobee.pipeline.launch.modules import delete_at_exit
from aerobee.pipeline.launch.one_line import show_ours_in_one_line
from aerobee.printable import printable

_INPUT: Final = "<stdin>"
_LOCAL: Final = "127.0.0.1:9876"
_NAMES: Final = ("spark", "sc", "sql", "sqlContext")


def open_shell(names: dict[str, Any]) -> None:
    """Fill the names of an interactive Python; PYTHONSTARTUP of the user runs last."""
    delete_at_exit()
    import pyspark.shell as opened  # makes the session, and greets

    names.update({name: getattr(opened, name) for name in _NAMES})
    show_ours_in_one_line()
    _say_ended_streams(opened.spark)
    print(hint(os.environ.get(NAME_SERVERS)))
    startup = os.environ.get(USER_STARTUP)
    if startup and Path(startup).is_file():
        exec(compile(Path(startup).read_bytes(), startup, "exec", dont_inherit=True), names)


def hint(name_servers: str | None) -> str:
    """How to read a topic from here."""
    server = "" if name_servers else f'.option("nameServer", "{_LOCAL}")'
    where = f" of {name_servers}" if name_servers else ""
    read = f'.format("rocketmq"){server}.option("topic", "Orders").load()'
    return (
        f"A topic{where} is a DataFrame:\n"
        f"  orders = spark.read{read}\n"
        '  orders.selectExpr("queueId", "queueOffset", "storeTimestamp", "string(body)").show()\n'
        "and a stream with spark.readStream. Ctrl-D ends."
    )


def _say_ended_streams(spark: Any) -> None:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Ended(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            pass

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            if event.exception is not None:
                text = sentence_in(event.exception) or event.exception.split("\n")[0]
                print(printable(f"aerobee: stream {event.id} has ended: {text}"), file=sys.stderr)

    spark.streams.addListener(Ended())


def run_application() -> None:
    """Run the program that the arguments of this process name; without arguments, standard input.
    Returns when it has ended, and raises what it raises."""
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
    """The names of a shell: the session, as the environment describes it."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    return {"spark": spark, "sc": spark.sparkContext, "sql": spark.sql}
