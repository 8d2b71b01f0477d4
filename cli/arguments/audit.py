"""The arguments of `aerobee audit`."""

import argparse

from aerobee.cli.arguments.argument_types import text
from aerobee.cli.arguments.shared_arguments import add_admin, add_client, add_json


def add_audit(parser: argparse.ArgumentParser) -> None:
    """Those of the command `parser`."""
    parser.description = (
        "Show who has changed what: topics, groups, offsets, settings, accounts, and what name "
        "servers keep; refused requests too. All brokers and name servers of ours are asked, "
        "which keep their events in files of a bounded size (audit.bytes). RocketMQ's brokers "
        "cannot tell."
    )
    add = parser.add_argument
    add(
        "--since", type=text, default="24h", metavar="TIME",
        help="how far back: a time span such as 1h or 3d, or a time such as 2025-03-01T12:30 (24h)",
    )  # fmt: skip
    add("--account", type=text, metavar="KEY", help="those of this access key")
    add("--object", type=text, metavar="NAME", help="those about this topic, group, or the like")
    add(
        "--code", type=text, metavar="REQUEST", action="append", default=[],
        help="those of this request, such as topic_delete, or a request code (more than once: any)",
    )  # fmt: skip
    add("--broker", type=text, metavar="NAME", help="those of this broker alone")
    add_admin(parser)
    add_client(parser)
    add_json(parser)
    parser.set_defaults(command="audit")
