"""The arguments of `aerobee doctor` and `aerobee check`."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aerobee.cli.arguments.argument_types import text
from aerobee.cli.arguments.parser import Parser
from aerobee.cli.arguments.shared_arguments import (
    Commands,
    add_client,
    add_json,
    add_settings,
    commands_of,
)

# Monitoring systems take 2 for "critical"; a wrong command line is "unknown" to them.
_UNKNOWN: Final = 3


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Those of `doctor`."""
    parser.description = (
        "Examine this machine for a broker with these settings: ports, clock, disks, open files, "
        "memory, settings of the kernel, certificates, owners of files. Of a running broker also "
        "whether clients reach the address that they are told, and whether all name servers tell "
        "the same. Nothing is changed; each finding has its remedy. The exit code is 1 if there is "
        "a fault. Without -n and --context the name servers of the settings are asked."
    )
    parser.epilog = (
        "--bundle writes what a bug report needs. Passwords, keys and tokens are taken out; look "
        "through it before you give it away."
    )
    add_settings(parser)
    add = parser.add_argument
    add("--bundle", metavar="FILE.tar.gz", help="findings, settings, routes, metrics and log")
    about = "with --bundle: the broker's log, whose last lines are taken (such as a saved journal)"
    add("--log", metavar="FILE", help=about)
    add_client(parser)
    add_json(parser)
    parser.set_defaults(command="doctor")


def add_check(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    parser.epilog = (
        "One line with performance data, exit code 0 (ok), 1 (warning), 2 (critical) or 3 "
        "(unknown), as Nagios and its kin have it. A threshold is a number or a range of theirs: "
        "10 (above 10 or below 0), 10: (below 10), ~:10 (above 10), 10:20 (outside), @10:20 "
        "(inside)."
    )
    assert isinstance(parser, Parser)
    parser.usage_code = _UNKNOWN
    group = commands_of(parser)
    about = "messages that a group has before it"
    with _checking(group, "lag", about, "messages", "1000", "10000") as lag:
        lag.add_argument("group", type=text)
        lag.add_argument("--topic", type=text, metavar="NAME", help="of this topic alone")
    about = "how full the disks of brokers are"
    with _checking(group, "disk", about, "percent used", "75", "85") as disk:
        disk.add_argument("--broker", type=text, metavar="NAME", help="this one (default: all)")
    about = "messages that a group has given up"
    with _checking(group, "dlq", about, "dead letters", "0", "100") as dlq:
        dlq.add_argument("group", type=text)
    about = "days until certificates end"
    with _checking(group, "certificate", about, "days left", "30:", "7:") as certificate:
        certificate.add_argument(
            "target", nargs="*", type=text, metavar="FILE|HOST:PORT",
            help="a certificate in PEM, or who shows one (default: the name servers and masters)",
        )  # fmt: skip
    about = "whether name servers and masters answer, and how soon"
    with _checking(group, "connection", about, "seconds to the answer", "1", "3") as connection:
        connection.add_argument("--broker", type=text, metavar="NAME", help="its master alone")


@contextmanager
def _checking(
    group: Commands, name: str, about: str, unit: str, warning: str, critical: str
) -> Iterator[argparse.ArgumentParser]:
    """The parser of a check, with its thresholds."""
    parser = group.add_parser(name, help=about, description=f"Check {about}.")
    assert isinstance(parser, Parser)
    parser.usage_code = _UNKNOWN
    yield parser
    for option, default in (("--warning", warning), ("--critical", critical)):
        parser.add_argument(
            option, type=text, default=default, metavar="RANGE", help=f"{unit} ({default})"
        )
    add_client(parser)
    parser.set_defaults(command=f"check {name}", usage_code=_UNKNOWN)
