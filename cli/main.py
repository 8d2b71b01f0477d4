"""`aerobee`: one command for the daemon and for the first half hour with it.

The parser alone is built at the start; what a command needs is imported when it runs, so that
`aerobee --help` answers at once. Exit codes: 0 done, 1 refused or not found, or the output is full,
2 usage, 3 cannot connect, or something else than a name server stands there (or a port is in use),
78 configuration. `aerobee store` and `aerobee pipeline` have codes of their own.
"""

import argparse
import errno
import gc
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final

from aerobee.cli.arguments.parser import build_parser
from aerobee.cli.imports import no_collections
from aerobee.config.loading.hangup import HANGUPS

# Those that SIGHUP has read their configuration again, instead of ending them.
_DAEMONS: Final = frozenset({"serve", "nameserver"})
_INTERRUPTED: Final = 130
# A write to a device without room raises one of these; files that we open ourselves are named.
_OUTPUT_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of the process."""
    if arguments is None:
        sys.excepthook = _show_bug
        if not _DAEMONS.isdisjoint(sys.argv[1:2]):
            HANGUPS.keep()
    parsed = _parse(arguments)
    try:
        code = _run(parsed, is_process=arguments is None)
        # Now, while a broken pipe can still be handled.
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except OSError as error:
        if error.errno not in _OUTPUT_FULL or error.filename is not None:
            return _explain(error)
        _silence_stdout()
        return _explain_full(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the top of the process; bugs are raised again
        return _explain(error)
    return code


def _show_bug(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    from aerobee.cli.printing.output import say_traceback

    say_traceback(kind, error, frames)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line; argparse ends the process with code 2 when it is wrong.

    It takes a word that may be left out, such as the body of `message send TOPIC`, only when it
    stands beside the words before it, so a word that stands after an option is put in its place
    here.
    """
    parser = build_parser()
    parsed: argparse.Namespace
    parsed, rest = parser.parse_known_args(arguments)
    parsed.arguments = sys.argv[1:] if arguments is None else list(arguments)
    is_body = len(rest) == 1 and not rest[0].startswith("-")
    if is_body and getattr(parsed, "body", "") is None:
        parsed.body = rest[0]
    elif rest:
        parser.usage_code = getattr(parsed, "usage_code", parser.usage_code)
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return parsed


def _run(parsed: argparse.Namespace, *, is_process: bool) -> int:
    module, name = COMMANDS[parsed.command]
    command: Callable[[argparse.Namespace], int]
    with no_collections():
        command = getattr(importlib.import_module(f"aerobee.cli.{module}"), name)
    if is_process:
        # No later collection looks at it either, and the collection at the end of a process is a
        # tenth of a short command.
        gc.freeze()
    return command(parsed)


def _explain(error: Exception) -> int:
    """Say an error meant for people and give its exit code; a bug keeps its traceback."""
    from aerobee.cli.printing.output import CommandFailed, say
    from aerobee.config.errors import ConfigError

    if isinstance(error, ConfigError):
        for one in error.errors:
            say(f"aerobee: {one}")
        return ConfigError.EXIT_CODE
    if isinstance(error, CommandFailed):
        say(f"aerobee: {error}")
        return error.code
    raise error


def _explain_full(error: OSError) -> int:
    from aerobee.cli.printing.output import REFUSED, say

    say(f"aerobee: the output cannot be written: {error.strerror}")
    return REFUSED


def _silence_stdout() -> None:
    """Standard output takes no more, because its reader has seen enough (`| head`) or it is full;
    the exit must not write again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Module below aerobee.cli and function of each command; the module is imported when it runs.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve", "serve"),
    "nameserver": ("serve", "nameserver"),
    "shards": ("shards", "show_shards"),
    "config show": ("configuration.settings", "show"),
    "config check": ("configuration.settings", "check"),
    "config explain": ("configuration.settings", "explain"),
    "config convert": ("configuration.convert", "convert"),
    "context list": ("configuration.contexts", "list_contexts"),
    "context use": ("configuration.contexts", "use_context"),
    "context show": ("configuration.contexts", "show_context"),
    "context add": ("configuration.contexts", "add_context"),
    "context remove": ("configuration.contexts", "remove_context"),
    "completion": ("configuration.completion", "print_completion"),
    "doctor": ("doctor.command", "examine"),
    **{
        f"check {name}": ("doctor.checks", f"check_{name}")
        for name in ("lag", "disk", "dlq", "certificate", "connection")
    },
    "acl check": ("configuration.accounts", "check"),
    "acl explain": ("configuration.accounts", "explain_account"),
    "audit": ("cluster.audit", "show_audit"),
    "broker clean": ("cluster.brokers", "clean"),
    "broker config": ("cluster.brokers", "show_config"),
    "status": ("cluster.overview.status", "show_status"),
    "client list": ("cluster.overview.clients", "list_clients"),
    "client show": ("cluster.overview.clients", "show_client"),
    "topic explain": ("cluster.overview.topic_explain", "explain_topic"),
    "broker permission": ("cluster.overview.permission", "change_permission"),
    "broker drain": ("cluster.drain", "drain"),
    "broker ha": ("cluster.replication", "show_ha"),
    "topic list": ("cluster.topics", "list_topics"),
    "topic create": ("cluster.topic_create", "create_topic"),
    "topic describe": ("cluster.topics", "describe_topic"),
    "topic delete": ("cluster.topics", "delete_topic"),
    "group list": ("cluster.groups", "list_groups"),
    "group describe": ("cluster.groups", "describe_group"),
    "group explain": ("cluster.consumer_groups.group_explain", "explain_group"),
    "group create": ("cluster.consumer_groups.group_changes", "create_group"),
    "group update": ("cluster.consumer_groups.group_changes", "update_group"),
    "group delete": ("cluster.consumer_groups.group_changes", "delete_group"),
    "offset show": ("cluster.offsets", "show_offsets"),
    "offset reset": ("cluster.consumer_groups.offset_changes", "reset_offsets"),
    "offset clone": ("cluster.consumer_groups.offset_changes", "clone_offsets"),
    "offset undo": ("cluster.consumer_groups.offset_changes", "undo_offsets"),
    "message send": ("cluster.sending", "send"),
    "message cancel": ("cluster.sending", "cancel"),
    "message pull": ("cluster.messages", "pull"),
    "message tail": ("cluster.messages", "tail"),
    "message query": ("cluster.messages", "query"),
    "message show": ("cluster.delivery.message_state", "show_message"),
    "message trace": ("cluster.delivery.message_trace", "trace"),
    "message resend": ("cluster.delivery.message_changes", "resend"),
    "message skip": ("cluster.delivery.message_changes", "skip"),
    "topic purge": ("cluster.delivery.topic_purge", "purge"),
    "dlq list": ("cluster.delivery.dead_letters", "list_groups"),
    "dlq peek": ("cluster.delivery.dead_letters", "peek"),
    "dlq export": ("cluster.delivery.dead_letters", "export"),
    "dlq resend": ("cluster.delivery.dead_letter_changes", "resend"),
    "dlq purge": ("cluster.delivery.dead_letter_changes", "purge"),
    **{
        f"bench {name}": ("bench.command", "bench")
        for name in ("send", "batch", "pull", "e2e", "workload")
    },
    "store verify": ("store.verify", "verify_store"),
    "store rebuild": ("store.mending", "rebuild_store"),
    "store repair": ("store.mending", "repair_store"),
    "store truncate": ("store.mending", "truncate_store"),
    "store export-timers": ("store.export_timers", "export_timers"),
    "store retention": ("store.retention", "show_retention"),
    "store backup": ("store.backups", "back_up_store"),
    "store restore": ("store.backups", "restore_store"),
    "store verify-backup": ("store.backups", "verify_backup"),
    "store dump messages": ("store.dump", "dump_messages"),
    "store dump queues": ("store.dump", "dump_queues"),
    "store dump index": ("store.dump", "dump_index"),
    "store dump checkpoint": ("store.dump", "dump_checkpoint"),
    "pipeline": ("pipeline", "run_pipeline"),
    "pipeline launch": ("pipeline", "launch"),
}
