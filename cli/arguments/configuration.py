"""The arguments of `aerobee config`, `acl`, `context` and `completion`."""

import argparse

from aerobee.cli.arguments.argument_types import text
from aerobee.cli.arguments.shared_arguments import (
    Commands,
    add_admin,
    add_connection,
    add_json,
    add_settings,
    commands_of,
)

# Those that the library shtab can write for (cli/configuration/completion.py).
SHELLS = ("bash", "zsh", "fish", "tcsh")


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
    _add_convert(group)


def _add_convert(group: Commands) -> None:
    about = "a RocketMQ broker.conf as our TOML, with a report of every key"
    convert = group.add_parser(
        "convert",
        help=about,
        description="Print the settings of a broker.conf as TOML for aerobee serve -c, on standard "
        "output; say on standard error what became of each key. The TOML gives the same settings "
        "as the file does. Secrets are in it as they are in the file.",
    )
    convert.add_argument("config", metavar="FILE", help="the broker.conf")
    convert.add_argument(
        "-o", "--output", metavar="FILE", help="write the TOML there, for its owner alone to read"
    )
    convert.add_argument("--strict", action="store_true", help="unknown keys are errors")
    add_json(convert)
    convert.set_defaults(command="config convert")


def add_context(parser: argparse.ArgumentParser) -> None:
    """The commands of the group `parser`."""
    group = commands_of(parser)
    listing = group.add_parser("list", help="the named connections of this user")
    add_json(listing)
    listing.set_defaults(command="context list")
    use = group.add_parser(
        "use",
        help="have commands use a context unless they are given name servers",
        description="Have commands use this context from now on, where they are given neither "
        "--context nor -n, and the environment has neither AEROBEE_CONTEXT nor NAMESRV_ADDR.",
    )
    which = use.add_mutually_exclusive_group(required=True)
    which.add_argument("name", nargs="?", type=text, metavar="NAME")
    which.add_argument("--none", action="store_true", help="use none from now on")
    use.set_defaults(command="context use")
    show = group.add_parser("show", help="what a context holds")
    show.add_argument(
        "name", nargs="?", type=text, metavar="NAME", help="default: the one that would be used"
    )
    add_json(show)
    show.set_defaults(command="context show")
    add = group.add_parser(
        "add",
        help="name a connection",
        description="Keep the options of a connection under a name. Files are kept as paths: no "
        "key and no password is copied.",
    )
    add.add_argument("name", type=text, metavar="NAME", help="letters, digits, _, - and .")
    add.add_argument("--replace", action="store_true", help="if there is one of that name")
    add.add_argument("--use", action="store_true", help="have commands use it from now on")
    add_admin(add)
    add_connection(add, is_required=True)
    add.set_defaults(command="context add")
    remove = group.add_parser("remove", help="forget a context")
    remove.add_argument("name", type=text, metavar="NAME")
    remove.set_defaults(command="context remove")


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Those of `completion`."""
    parser.description = (
        "Print the script that completes commands and options of aerobee in a shell. It needs the "
        "library shtab: pip install 'aerobee[completion]'."
    )
    parser.epilog = (
        'bash: eval "$(aerobee completion bash)" in ~/.bashrc. zsh: write it into the file '
        "_aerobee of a folder of $fpath. fish: write it into "
        "~/.config/fish/completions/aerobee.fish. tcsh: source it in ~/.tcshrc."
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(command="completion")


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
