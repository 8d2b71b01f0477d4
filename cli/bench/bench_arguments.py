"""The arguments of `aerobee bench`."""

import argparse
from typing import Final

from aerobee.cli.arguments.argument_types import at_most, duration, text
from aerobee.cli.arguments.shared_arguments import Commands, add_admin, add_client, commands_of
from aerobee.cli.bench.loads import BATCH, END_TO_END, PULL, SEND, LoadShape, Mode
from aerobee.pipeline.argument_values import count

_EPILOG: Final = """\
A closed loop (the default) keeps a number of requests under way and shows the highest rate. An open
loop (--rate) sends by the clock, and its latencies count from when a message was due: they are
those of users who do not wait for each other. The topic is made, and deleted at the end.

A line a second goes to standard error, a table to standard output. docs/bench.md has the rest.
exit codes: 0 done, 1 something failed or was lost, 2 usage, 3 cannot connect, 130 interrupted
"""
_BODY_MAX: Final = 4 * 1024 * 1024


def add_bench(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    group = commands_of(parser)
    send = _command(group, "send", "send single messages")
    _add_shape(send, SEND)
    batch = _command(group, "batch", "send batches of messages")
    batch.add_argument(
        "--batch", type=count, default=BATCH.batch, metavar="N", help="in a request (32)"
    )
    _add_shape(batch, BATCH)
    pull = _command(group, "pull", "pull messages that are stored, again and again")
    pull.add_argument(
        "--messages", type=count, default=100_000, metavar="N",
        help="stored first, in a topic that is made (100000)",
    )  # fmt: skip
    _add_fetch(pull)
    _add_shape(pull, PULL)
    e2e = _command(group, "e2e", "send and consume together: from the producer to the consumer")
    add = e2e.add_argument
    add("--subscriptions", type=count, default=1, metavar="N", help="each gets all messages (1)")
    add("--consumers", type=count, default=1, metavar="N", help="of each subscription (1)")
    _add_fetch(e2e)
    _add_shape(e2e, END_TO_END)
    _add_workload(group)


def _command(group: Commands, name: str, about: str) -> argparse.ArgumentParser:
    parser = group.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=f"bench {name}")
    return parser


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max", type=count, default=PULL.fetch, dest="fetch", metavar="N",
        help="most messages a pull (32)",
    )  # fmt: skip


def _add_shape(parser: argparse.ArgumentParser, load: LoadShape) -> None:
    """Arguments in whose place `bench workload` reads a file."""
    add, pulls = parser.add_argument, load.mode is Mode.PULL
    add("--topic", type=text, metavar="NAME", help="use this one; it is made if it is not there, "
        "and stays (default: one of its own, deleted at the end)")  # fmt: skip
    add("--queues", type=_few, default=8, metavar="N", help="of a topic that is made, a broker (8)")
    add("--size", type=_size, default=load.size, metavar="BYTES", help=f"of a body ({load.size})")
    add(
        "--connections", type=_few, default=load.connections, metavar="N",
        help=f"that {'pull' if pulls else 'send'} ({load.connections})",
    )  # fmt: skip
    what = "pulls" if pulls else "messages"
    add("--rate", type=_rate, metavar="N", help=f"open loop: {what} a second in all")
    add("--warm-up", type=_warm_up, default=10.0, metavar="SPAN", help="not counted (10s); a Java "
        "broker needs some ten seconds to become quick")  # fmt: skip
    add("--duration", type=duration, default=30.0, metavar="SPAN", help="measured (30s)")
    _add_common(parser)


def _add_workload(group: Commands) -> None:
    about = "run a workload file of the OpenMessaging Benchmark"
    parser = _command(group, "workload", about)
    add = parser.add_argument
    add("file", type=text, metavar="FILE", help="such as 1-topic-16-partitions-1kb.yaml")
    add("--warm-up", type=_warm_up, metavar="SPAN", help="instead of warmupDurationMinutes")
    add("--duration", type=duration, metavar="SPAN", help="instead of testDurationMinutes")
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--in-flight", type=_few, metavar="N", help="most requests under way on each connection "
        "(closed loop 1, open loop 1000)")  # fmt: skip
    add("--processes", type=count, metavar="N", help="of the generator (half of the cores)")
    add("--broker", type=text, metavar="NAME", help="only this one (default: all masters)")
    add("--seed", type=int, default=1, metavar="N", help="of bodies and keys (1)")
    add("--keep", action="store_true", help="do not delete the topic that was made")
    add(
        "--json", nargs="?", const="-", metavar="FILE",
        help="write the result under the OpenMessaging Benchmark's names; without FILE: print it",
    )  # fmt: skip
    add("--plot", metavar="FILE", help="draw it, into a .svg, .png or .pdf (needs matplotlib)")
    add_admin(parser)
    add_client(parser)


def _few(argument: str) -> int:
    return at_most(count(argument), 10_000, argument)


def _size(argument: str) -> int:
    return at_most(count(argument), _BODY_MAX, argument, f"{_BODY_MAX} (4 MiB)")


def _rate(argument: str) -> float:
    value = float(argument)
    if not 0 < value <= 10_000_000:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 10000000, not {argument}")
    return value


def _warm_up(argument: str) -> float:
    return 0.0 if argument in ("0", "0s") else duration(argument)
