"""The arguments of `aerobee config` and `aerobee acl`."""

import argparse

from aerobee.cli.arguments.shared_arguments import add_json, add_settings, commands_of


def add_config(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    show = group.add_parser(
        "show",
        help="every setting that counts, and why",
        description="Show the settings that a broker started with these files, this environment "
        "and these flags would have. Running brokers are not asked.",
    )
    show.add_argument("key", nargs="*", metavar="KEY", help="only these: names here, or RocketMQ's")
    add_settings(show)
    show.add_argument("--origin", action="store_true", help="where each value comes from")
    show.add_argument("--changed", action="store_true", help="only what somebody set")
    add_json(show)
    show.set_defaults(command="config show")
    explain = group.add_parser("explain", help="what a setting means")
    explain.add_argument("key", nargs="+", metavar="KEY", help="its name here, or RocketMQ's")
    explain.set_defaults(command="config explain")
    check = group.add_parser("check", help="read a file as serve would, and say what is wrong")
    check.add_argument("config", metavar="FILE")
    check.add_argument("--format", choices=("toml", "properties"), help="if FILE does not tell")
    check.add_argument("--strict", action="store_true", help="warnings fail as well")
    add_json(check)
    check.set_defaults(command="config check")


def add_acl(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    check = group.add_parser("check", help="read a file as a broker would, and say what is wrong")
    check.add_argument("file", metavar="FILE", help="plain_acl.yml, or the folder conf/acl")
    check.set_defaults(command="acl check")
    explain = group.add_parser("explain", help="what an account may do, and which line says so")
    explain.add_argument("file", nargs="+", metavar="FILE", help="files or folders of accounts")
    explain.add_argument("--account", required=True, metavar="KEY", help="its access key")
    explain.add_argument("--topic", metavar="T", help="may it send to it, may it read it?")
    explain.add_argument("--group", metavar="G", help="may it consume in it?")
    explain.set_defaults(command="acl explain")
