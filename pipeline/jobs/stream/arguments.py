"""The words of `aerobee pipeline stream`. Nothing heavy is imported, as in jobs/arguments.py."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from aerobee.pipeline.jobs.argument_values import MODES, count, seconds, size

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Commands = _SubParsersAction[argparse.ArgumentParser]

FORMATS: Final = ("parquet", "delta", "iceberg")
BODIES: Final = ("binary", "text", "json", "avro", "protobuf")
REFUSE, ADD = "refuse", "add"
_ABOUT: Final = "write live topics to a table of a lake, each message exactly once"
_EPILOG: Final = """\
TABLE is a directory or a URI; with delta and iceberg also the name of a table. It runs until
SIGTERM or SIGINT, and goes on from its checkpoint when it is started again; with --available-now it
ends with what is there, for a timer.

exit codes: 0 ended in order, 1 a bad body in mode failfast, 2 usage, 3 could not
"""


def add_stream(commands: Commands) -> None:
    """The command; it sets `job` to its name."""
    parser = commands.add_parser(
        "stream",
        help=_ABOUT,
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_source(parser)
    _add_bodies(parser)
    _add_table(parser)
    _add_run(parser)
    parser.set_defaults(command="pipeline", job="stream")


def _add_source(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is read").add_argument
    servers = "of the brokers to read from (NAMESRV_ADDR of the environment)"
    add("-n", "--name-servers", metavar="HOST:PORT;...", help=servers)
    add("--topic", action="append", default=[], metavar="TOPIC", help="repeatable")
    add("--pattern", metavar="REGEX", help="all topics whose whole names fit, new ones too")
    begin = "earliest, latest, or a time (ISO, ms): of a new stream (earliest)"
    add("--from", dest="start", default="earliest", metavar="WHERE", help=begin)
    add("--tags", metavar="A||B", help="only messages with one of these tags")
    add("--filter", metavar="SQL92", help="only messages whose properties fulfil this")
    most = "messages in one batch at most (PySpark 4.2 or newer)"
    add("--max-per-batch", type=count, metavar="N", help=most)
    add("--source", action="append", default=[], metavar="KEY=VALUE", help="option of the source")


def _add_bodies(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what becomes of bodies").add_argument
    add("--body", choices=BODIES, default="binary", help="what bodies are (binary)")
    schema = "of JSON in DDL, or a file with it (inferred once); of avro and protobuf a file"
    add("--schema", metavar="DDL|FILE", help=schema)
    add("--message", metavar="NAME", help="the message's name in the protobuf descriptor")
    infer = "JSON bodies that a schema is inferred from (1000)"
    add("--infer-from", type=count, default=1000, metavar="N", help=infer)
    option = "of Spark's function that reads bodies, such as timestampFormat=..."
    add("--body-option", action="append", default=[], metavar="KEY=VALUE", help=option)
    add("--nested", action="store_true", help="fields in one column `value`, not one column each")
    add("--keep-body", action="store_true", help="keep the body itself beside its fields")
    bad = "bad bodies: kept aside, left out, or the end of the stream (permissive)"
    add("--mode", choices=MODES, default=MODES[0], help=bad)
    aside = "rows of bad bodies go to this table, not into the column bad_body"
    add("--bad-to", metavar="TABLE", help=aside)


def _add_table(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where it goes").add_argument
    add("--to", required=True, metavar="TABLE", help="directory, URI or name of the table")
    add("--format", choices=FORMATS, default=FORMATS[0], help="of the table (parquet)")
    columns = "of the source beside the body (topic,brokerName,queueId,queueOffset,...)"
    add("--columns", metavar="A,B,...", help=columns)
    partition = "columns, or date: the day (UTC) a message was stored"
    add("--partition-by", metavar="A,B,...", help=partition)
    add("--files", type=count, metavar="N", help="of a batch at most (one a queue with messages)")
    add("--compact-every", type=count, metavar="N", help="batches (delta, iceberg)")
    add("--compact-bytes", type=size, metavar="SIZE", help="of a compacted file")
    change = "a table without a column of this stream: refuse it, or add the column (refuse)"
    add("--schema-change", choices=(REFUSE, ADD), default=REFUSE, help=change)
    add("--existing", action="store_true", help="append to a table that this stream did not make")


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how it runs").add_argument
    place = "directory of its own (below TABLE, if that is a directory)"
    add("--checkpoint", metavar="DIR", help=place)
    add("--trigger", type=seconds, default=30.0, metavar="S", help="seconds between batches (30)")
    add("--available-now", action="store_true", help="end with what is there now")
    add("--packages", metavar="G:A:V,...", help="Maven packages, as spark-submit has them")
    add("--master", metavar="URL", help="Spark master (spark-submit's, or local[*])")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark, repeatable")
    add("--report-every", type=seconds, default=30.0, metavar="S", help="between lines (30)")
    add("--json", action="store_true", help="the last report as JSON")
    add("-q", "--quiet", action="store_true", help="no progress")
