"""The arguments of the jobs, for `aerobee pipeline NAME` and for spark-submit alike.

Nothing heavy is imported: `aerobee --help` builds this parser, too.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from aerobee.pipeline.jobs.argument_values import MODES, hours, number, rate, size
from aerobee.pipeline.jobs.stream.arguments import add_stream

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Commands = _SubParsersAction[argparse.ArgumentParser]

_EPILOG: Final = """\
DIR is a store's directory, or a backup or copy of one, also as a URI (s3://..., hdfs://...);
several are the directories of one log. No broker is needed, and nothing in DIR is changed.

exit codes: 0 done, 1 damage found (audit), a bad record in mode failfast, or an archive that is not
what its ledger says, 2 usage, 3 could not
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
    add_stream(commands)


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


def _job(commands: Commands, name: str, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    parser.set_defaults(command="pipeline", job=name)
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
