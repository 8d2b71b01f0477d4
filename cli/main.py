"""`aerobee`: one command for the daemon and for the first half hour with it.

The parser alone is built at the start; what a command needs is imported when it runs, so that
`aerobee --help` answers at once. Exit codes: 0 done, 1 refused or not found, 2 usage, 3 cannot
connect (or the port is in use), 78 configuration. `aerobee store` and
`aerobee pipeline` have codes of their own.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aerobee.cli.parser import build_parser

_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of the process."""
    parsed = _parse(arguments)
    try:
        code = _COMMANDS[parsed.command](parsed)
        # Now, while a broken pipe can still be handled.
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the top of the process; bugs are raised again
        return _explain(error)
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line; argparse ends the process with code 2 when it is wrong.

    It takes a word that may be left out, such as the body of `message send TOPIC`, only when it
    stands beside the words before it, so what stands behind an option is put in its place here.
    """
    parser = build_parser()
    parsed, rest = parser.parse_known_args(arguments)
    is_body = len(rest) == 1 and not rest[0].startswith("-")
    if is_body and getattr(parsed, "body", "") is None:
        parsed.body = rest[0]
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return parsed


def _explain(error: Exception) -> int:
    """Say an error meant for people and give its exit code; a bug keeps its traceback."""
    from aerobee.cli.output import CommandFailed, say
    from aerobee.config.errors import ConfigError

    if isinstance(error, ConfigError):
        for one in error.errors:
            say(f"aerobee: {one}")
        return ConfigError.EXIT_CODE
    if isinstance(error, CommandFailed):
        say(f"aerobee: {error}")
        return error.code
    raise error


def _silence_stdout() -> None:
    """The reader of our output has seen enough (`| head`); the exit must not write there again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _serve(parsed: argparse.Namespace) -> int:
    from aerobee.cli.serve import serve

    return serve(parsed)


def _nameserver(parsed: argparse.Namespace) -> int:
    from aerobee.cli.serve import nameserver

    return nameserver(parsed)


def _config_show(parsed: argparse.Namespace) -> int:
    from aerobee.cli.configs import show

    return show(parsed)


def _config_explain(parsed: argparse.Namespace) -> int:
    from aerobee.cli.configs import explain

    return explain(parsed)


def _config_check(parsed: argparse.Namespace) -> int:
    from aerobee.cli.configs import check

    return check(parsed)


def _broker_clean(parsed: argparse.Namespace) -> int:
    from aerobee.cli.cluster.brokers import clean

    return clean(parsed)


def _topic_list(parsed: argparse.Namespace) -> int:
    from aerobee.cli.cluster.topics import list_topics

    return list_topics(parsed)


def _topic_create(parsed: argparse.Namespace) -> int:
    from aerobee.cli.cluster.topic_create import create_topic

    return create_topic(parsed)


def _topic_describe(parsed: argparse.Namespace) -> int:
    from aerobee.cli.cluster.topics import describe_topic

    return describe_topic(parsed)


def _message_send(parsed: argparse.Namespace) -> int:
    from aerobee.cli.cluster.sending import send

    return send(parsed)


def _message_pull(parsed: argparse.Namespace) -> int:
    from aerobee.cli.cluster.messages import pull

    return pull(parsed)


def _message_tail(parsed: argparse.Namespace) -> int:
    from aerobee.cli.cluster.messages import tail

    return tail(parsed)


def _message_query(parsed: argparse.Namespace) -> int:
    from aerobee.cli.cluster.messages import query

    return query(parsed)


def _store_verify(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.verify import verify_store

    return verify_store(parsed)


def _store_dump_messages(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.dump import dump_messages

    return dump_messages(parsed)


def _store_dump_queues(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.dump import dump_queues

    return dump_queues(parsed)


def _store_dump_index(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.dump import dump_index

    return dump_index(parsed)


def _store_dump_checkpoint(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.dump import dump_checkpoint

    return dump_checkpoint(parsed)


def _store_rebuild(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.rebuild import rebuild_store

    return rebuild_store(parsed)


def _store_truncate(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.truncate import truncate_store

    return truncate_store(parsed)


def _store_repair(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.repair import repair_store

    return repair_store(parsed)


def _store_retention(parsed: argparse.Namespace) -> int:
    from aerobee.cli.store.retention import show_retention

    return show_retention(parsed)


def _pipeline(parsed: argparse.Namespace) -> int:
    from aerobee.cli.pipeline import run_pipeline

    return run_pipeline(parsed)


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "serve": _serve,
    "nameserver": _nameserver,
    "config show": _config_show,
    "config check": _config_check,
    "config explain": _config_explain,
    "broker clean": _broker_clean,
    "topic list": _topic_list,
    "topic create": _topic_create,
    "topic describe": _topic_describe,
    "message send": _message_send,
    "message pull": _message_pull,
    "message tail": _message_tail,
    "message query": _message_query,
    "store verify": _store_verify,
    "store rebuild": _store_rebuild,
    "store repair": _store_repair,
    "store truncate": _store_truncate,
    "store retention": _store_retention,
    "store dump messages": _store_dump_messages,
    "store dump queues": _store_dump_queues,
    "store dump index": _store_dump_index,
    "store dump checkpoint": _store_dump_checkpoint,
    "pipeline": _pipeline,
}
