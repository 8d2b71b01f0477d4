"""The arguments of `aerobee store`: tools for a store's files, mostly at rest."""

import argparse
from typing import Final

from aerobee.cli.arguments.shared_arguments import (
    Commands,
    add_json,
    add_settings,
    add_yes,
    commands_of,
)
from aerobee.pipeline.argument_values import count, number, rate

_CODES: Final = """\
exit codes: 0 sound or done, 1 damage found, 2 usage, 3 could not, 78 configuration

Sizes of files come from --config or --set, as for serve, or are found from the files.
"""


def add_store(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    verify = _command(group, "verify", "read everything and say all that is wrong")
    verify.add_argument("--all", action="store_true", help="all findings, not the first of a kind")
    _add_dump(group)
    text = "make consume queues and index again from the commit log"
    rebuild = _command(group, "rebuild", text)
    rebuild.add_argument("--queues", action="store_true", help="only the consume queues")
    rebuild.add_argument("--index", action="store_true", help="only the index")
    text = "mend what a start refuses and fill what is damaged, keeping all that can be kept"
    repair = _command(group, "repair", text)
    text = "cut the end off: the log at a record, queues and index with it"
    truncate = _command(group, "truncate", text)
    where = truncate.add_mutually_exclusive_group(required=True)
    where.add_argument("--at", type=number, metavar="LOG_OFFSET", help="the first record to go")
    where.add_argument("--after-time", metavar="TIME", help="what was stored later: ISO time or ms")
    truncate.add_argument("--discard", action="store_true", help="keep nothing of it in lost+found")
    for parser in (repair, truncate):
        add_yes(parser)
    text = "turn messages with a time of their own into ones of delay levels, for RocketMQ"
    export = _command(group, "export-timers", text)
    export.add_argument("--dry-run", action="store_true", help="only say what would be stored")
    export.add_argument(
        "--list", metavar="FILE", help="write what no level reaches there, a JSON object a line"
    )
    text = "what would be deleted, when and why; deletes nothing, and a broker may run on the store"
    retention = _command(group, "retention", text)
    retention.add_argument(
        "--all", action="store_true", help="all segments and groups, not the first"
    )
    _add_backups(group)


def _add_backups(group: Commands) -> None:
    text = "copy what is new to a backup; a broker may run on the store"
    backup = _command(group, "backup", text)
    _add_target(backup)
    backup.add_argument(
        "--rate", type=rate, default=0, metavar="MB", help="most megabytes a second (no limit)"
    )
    text = "make a store of a backup, in a directory that is empty or not there"
    restore = _leaf(group, "restore", text)
    _add_target(restore)
    _add_common(restore)
    text = "read a backup and say which of its files are damaged"
    verify = _leaf(group, "verify-backup", text)
    _add_target(verify)
    _add_output(verify)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="the backup's directory")


def _add_dump(group: Commands) -> None:
    text = "list what the files hold, damaged places too"
    dump = group.add_parser("dump", help=text, description=text)
    what = dump.add_subparsers(metavar="WHAT", required=True)
    messages = _command(what, "dump messages", "records of the commit log, in its order")
    _add_queue_filters(messages)
    _add_times(messages)
    messages.add_argument("--key", help="only messages with this key or unique id")
    messages.add_argument(
        "--body",
        choices=("short", "text", "hex", "length"),
        default="short",
        help="how bodies are shown (short: the first 200 characters)",
    )
    queues = _command(what, "dump queues", "entries of the consume queues")
    _add_queue_filters(queues)
    queues.add_argument("--summary", action="store_true", help="one line for each queue")
    index = _command(what, "dump index", "entries of the index files")
    index.add_argument("--topic", help="of --key")
    index.add_argument("--key", help="only entries with the hash of this key")
    _add_log_range(index)
    _add_times(index)
    index.add_argument("--summary", action="store_true", help="one line for each file")
    for parser in (messages, queues, index):
        parser.add_argument("--limit", type=count, default=-1, metavar="N", help="most lines")
    _command(what, "dump checkpoint", "checkpoint, offsets file, last stop")


def _add_queue_filters(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--topic", help="only this topic")
    add("--queue", type=number, metavar="N", help="only queues of this number")
    add("--from-offset", type=number, metavar="N", help="first queue offset")
    add("--to-offset", type=number, metavar="N", help="queue offset to stop before")
    _add_log_range(parser)


def _add_log_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from-log", type=number, metavar="N", help="first log offset")
    parser.add_argument("--to-log", type=number, metavar="N", help="log offset to stop before")


def _add_times(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--begin", metavar="TIME", help="stored at or after: ISO time or ms")
    parser.add_argument("--end", metavar="TIME", help="stored before")


def _command(group: Commands, name: str, text: str) -> argparse.ArgumentParser:
    """A command on one store, with what they all take; the last word of `name` is its own."""
    parser = _leaf(group, name, text)
    _add_common(parser)
    return parser


def _leaf(group: Commands, name: str, text: str) -> argparse.ArgumentParser:
    """A command without arguments yet."""
    parser = group.add_parser(
        name.split()[-1],
        help=text,
        description=text,
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=f"store {name}")
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """The arguments of all commands on one store."""
    parser.add_argument("directory", metavar="DIR", help="the store's directory (storePathRootDir)")
    add_settings(parser, "the broker's TOML or broker.conf")
    _add_output(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_json(parser)
