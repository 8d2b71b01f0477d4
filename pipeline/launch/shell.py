"""What a shell has before its first prompt: Spark's own shell, and how a topic is read.

Errors of ours are one line there. A stream that ends with an error says so when it does, awaited
or not.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from aerobee.pipeline.brokers.access import NAME_SERVERS
from aerobee.pipeline.errors import sentence_in
from aerobee.pipeline.launch.command import USER_STARTUP
from aerobee.pipeline.launch.modules import delete_at_exit
from aerobee.pipeline.launch.one_line import show_ours_in_one_line
from aerobee.printable import printable

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
