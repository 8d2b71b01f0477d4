"""The arguments of the jobs, for `aerobee pipeline NAME` and for spark-submit alike.

Nothing heavy is imported: `aerobee --help` builds this parser, too.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from aerobee.pipeline.argument_values import MODES, count, hours, number, rate, seconds, size

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Commands = _SubParsersAction[argparse.ArgumentParser]

FORMATS: Final = ("parquet", "delta", "iceberg")
BODIES: Final = ("binary", "text", "json", "avro", "protobuf")
REFUSE, ADD = "refuse", "add"
_EPILOG: Final = """\
DIR is a store's directory, or a backup or copy of one, also as a URI (s3://..., hdfs://...);
several are the directories of one log. No broker is needed, and nothing in DIR is changed.

exit codes: 0 done, 1 damage found (audit), a bad record in mode failfast, or an archive that is not
what its ledger says, 2 usage, 3 could not
"""
_STREAM_EPILOG: Final = """\
TABLE is a directory or a URI; with delta and iceberg also the name of a table. It runs until
SIGTERM or SIGINT, and goes on from its checkpoint when it is started again; with --available-now it
ends with what is there, for a timer.

exit codes: 0 ended in order, 1 a bad body in mode failfast, 2 usage, 3 could not
"""


def build_parser() -> argparse.ArgumentParser:
    """The jobs alone, for spark-submit."""
    parser = argparse.ArgumentParser(prog="submit.py", description="Aerobee's pipeline jobs")
    add_jobs(parser.add_subparsers(metavar="JOB", required=True))
    return parser


def add_jobs(commands: Commands) -> None:
    """One command for each job; each sets `job` to its name."""
    _add_audit(commands)
    _add_rebuild(commands)
    _add_archive(commands)
    _add_replay(commands)
    _add_traffic(commands)
    _add_retention(commands)
    _add_dlq(commands)
    _add_stream(commands)


def _add_audit(commands: Commands) -> None:
    parser = _job(commands, "audit", "check every record, consume queue entry and queue number")
    _add_levels(parser)


def _add_rebuild(commands: Commands) -> None:
    parser = _job(commands, "rebuild", "make consume queues and index files again from the log")
    add = parser.add_argument
    add("--to", required=True, metavar="OUT", help="empty directory that all executors see")
    add("--queues", action="store_true", help="only the consume queues")
    add("--index", action="store_true", help="only the index")
    add("--queue-file-bytes", type=size, metavar="N", help="mappedFileSizeConsumeQueue (6000000)")
    add("--index-slots", type=number, metavar="N", help="maxHashSlotNum (5000000)")
    add("--index-entries", type=number, metavar="N", help="maxIndexNum (20000000)")
    _add_levels(parser)


def _add_archive(commands: Commands) -> None:
    text = "append what is new to Parquet by topic and date, each message exactly once"
    parser = _job(commands, "archive", text)
    _add_selection(parser)
    add = parser.add_argument
    add("--to", required=True, metavar="TARGET", help="directory or URI of the archive")
    add("--range-bytes", type=size, metavar="SIZE", help="of the log archived at a time (8G)")
    add("--file-bytes", type=size, metavar="SIZE", help="of the log in one file at most (1G)")
    add("--check", action="store_true", help="only compare the archive with its ledger")


def _add_replay(commands: Commands) -> None:
    text = "send selected messages of a store or an archive to a topic again"
    parser = _job(commands, "replay", text)
    _add_selection(parser)
    add = parser.add_argument
    add("--archive", action="store_true", help="DIR is an archive made by the job archive")
    servers = "of the broker to send to (NAMESRV_ADDR of the environment)"
    add("-n", "--name-servers", metavar="HOST:PORT;...", help=servers)
    add("--to", metavar="TOPIC", help="for all messages (default: the topic each came from)")
    add("--where", metavar="SQL", help="on the columns, such as \"tags = 'paid'\"")
    add("--rate", type=rate, metavar="N", help="messages a second at most")
    add("--dry-run", action="store_true", help="say what would be sent, and send nothing")
    add("--job-id", metavar="ID", help="a run again under this id sends nothing twice (Aerobee)")
    add("--sink", action="append", default=[], metavar="KEY=VALUE", help="option of the sink")


def _add_traffic(commands: Commands) -> None:
    parser = _job(commands, "traffic", "rates, sizes and latencies by topic, tag and producer")
    _add_selection(parser)
    add = parser.add_argument
    add("--plots", metavar="OUT", help="directory for PNG files and index.html (matplotlib)")
    add("--no-pictures", action="store_true", help="with --plots: index.html with tables alone")


def _add_retention(commands: Commands) -> None:
    text = "what if: what another age or size would delete, and what groups would lose"
    parser = _job(commands, "retention", text)
    add = parser.add_argument
    ages = "what if messages were kept so long (24, 48, 72, 168); repeatable"
    sizes = "what if the log were kept at this size, such as 500G; repeatable"
    add("--hours", type=hours, action="append", default=[], metavar="N", help=ages)
    add("--size", type=size, action="append", default=[], metavar="SIZE", help=sizes)


def _add_dlq(commands: Commands) -> None:
    parser = _job(commands, "dlq", "dead letters by group, topic and reason, with samples")
    _add_selection(parser)
    parser.add_argument("--samples", type=number, default=3, metavar="N", help="a group (3)")


def _command(commands: Commands, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command="pipeline", job=name)
    return parser


def _job(commands: Commands, name: str, text: str) -> argparse.ArgumentParser:
    """The command of a job that reads a store."""
    parser = _command(commands, name, text, _EPILOG)
    add = parser.add_argument
    more = "; with --archive the archive" if name == "replay" else ""
    add("directory", nargs="+", metavar="DIR", help=f"the store's directory{more}")
    add("--mode", choices=MODES, default="permissive", help="what becomes of bad records")
    add("--split-bytes", type=size, metavar="SIZE", help="of the log in one task (128M)")
    add("--output", metavar="OUT", help="write the job's tables there as Parquet")
    add("--master", metavar="URL", help="Spark master (spark-submit's, or local[*])")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark, repeatable")
    add("--json", action="store_true", help="JSON for scripts")
    add("-q", "--quiet", action="store_true", help="no progress")
    return parser


def _add_selection(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--topic", action="append", default=[], metavar="TOPIC", help="only this, repeatable")
    add("--begin", metavar="TIME", help="stored at or after: ISO time or ms")
    add("--end", metavar="TIME", help="stored before")


def _add_levels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--delay-levels", metavar="TEXT", help="messageDelayLevel of the broker, if not the default"
    )


def _add_stream(commands: Commands) -> None:
    text = "write live topics to a table of a lake, each message exactly once"
    parser = _command(commands, "stream", text, _STREAM_EPILOG)
    _add_source(parser)
    _add_bodies(parser)
    _add_table(parser)
    _add_run(parser)


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
