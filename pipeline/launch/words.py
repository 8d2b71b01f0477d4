"""The words after `aerobee pipeline shell` and `submit`: options of ours, options of Spark, and the
program to run. Options of Spark are handed on as they are.

Nothing heavy is imported: `aerobee --help` builds the parsers, too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aerobee.pipeline.jobs.common.job_result import USAGE, JobFailed

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Commands = _SubParsersAction[argparse.ArgumentParser]

#: Options of spark-submit that stand alone; all others have a value.
_SWITCHES: Final = frozenset({"--verbose", "-v", "--supervise", "--version", "--usage-error"})
#: A line of a file of settings: a name and, after a blank or a sign, the value.
_SETTING: Final = re.compile(r"([^\s=:#!][^\s=:]*)(?:\s*[=:]\s*|\s+)(.+)")
_NAME_SERVERS: Final = ("-n", "--name-servers")
_INSTALLED: Final = "--installed"
_HELP: Final = ("-h", "--help")
_OURS: Final = """\
options:
  -h, --help            show this help message and exit
  -n, --name-servers HOST:PORT;...
                        for reads and writes without the option nameServer (NAMESRV_ADDR)
  --installed           Aerobee is installed where executors run: send it to no cluster
  SPARK-OPTION          any of spark-submit: --master, --conf KEY=VALUE, --packages, ...
"""
_SHELL: Final = f"""\
{_OURS}
`spark` is the session, `sc` its context. A program on standard input is run whole, and its first
error ends it:

  aerobee pipeline shell < program.py
"""
_SUBMIT: Final = f"""\
{_OURS}
APP is a program in Python (or a jar), ARGS are its own; or the description of a declarative
pipeline, in YAML. Workers are this Python, unless
spark.pyspark.python or PYSPARK_PYTHON says otherwise; a cluster is sent Aerobee's modules.
"""


@dataclass
class Words:
    """The command line, sorted; `spark` are options of spark-submit with their values, in order."""

    name_servers: str | None = None
    installed: bool = False
    help: bool = False
    spark: list[tuple[str, str | None]] = field(default_factory=list)
    application: str | None = None
    arguments: list[str] = field(default_factory=list)

    def value(self, *names: str) -> str | None:
        """The value of the last of Spark's options with one of these names."""
        return next((value for name, value in reversed(self.spark) if name in names), None)

    def conf(self, key: str) -> str | None:
        """The value of the last `--conf KEY=...` of that key."""
        found = [value or "" for name, value in self.spark if name in ("--conf", "-c")]
        pairs = [one.partition("=") for one in found]
        return next((value for name, _, value in reversed(pairs) if name == key), None)


def add_launches(commands: Commands) -> None:
    """`shell` and `submit`; each sets `launch` to its name, `words` and `print_help`."""
    usages = {
        "shell": ("a PySpark shell that has our formats", "[-n ...] [SPARK-OPTION ...]", _SHELL),
        "submit": (
            "run a program on Spark, with our formats",
            "[-n ...] [SPARK-OPTION ...] APP [ARGS ...]",
            _SUBMIT,
        ),
    }
    for name, (about, usage, epilog) in usages.items():
        parser = commands.add_parser(
            name,
            help=about,
            description=about,
            usage=f"aerobee pipeline {name} {usage}",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # To argparse no word is an option: `split` knows which are.
            prefix_chars="\0",
            add_help=False,
        )
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        parser.set_defaults(command="pipeline launch", launch=name, print_help=parser.print_help)


def split(words: Sequence[str], launch: str) -> Words:
    """Sorts the words by kind. Raises JobFailed for a word that cannot be there."""
    found, rest = Words(), list(words)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if name == "--":
            # In `pipeline shell -- --master ...` all that follows is Spark's.
            continue
        if name in _HELP:
            found.help = True
        elif name == _INSTALLED:
            found.installed = True
        elif name in _SWITCHES:
            found.spark.append((name, None))
        else:
            if not equals:
                if not rest:
                    raise JobFailed(f"option {name} has no value", USAGE)
                value = rest.pop(0)
            if name in _NAME_SERVERS:
                found.name_servers = value
            else:
                found.spark.append((name, value))
    if launch == "shell" and rest:
        text = f"{rest[0]!r} is no option; a program is run by `aerobee pipeline submit {rest[0]}`"
        raise JobFailed(text, USAGE)
    if rest:
        found.application, found.arguments = rest[0], rest[1:]
    return found


def flat(options: Iterable[tuple[str, str | None]]) -> list[str]:
    """Options and values as words again."""
    return [word for option in options for word in option if word is not None]


def defaults(words: Words, home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of the file that spark-submit reads besides; empty without that file."""
    named = words.value("--properties-file")
    folder = environ.get("SPARK_CONF_DIR") or home / "conf"
    path = Path(named) if named else Path(folder) / "spark-defaults.conf"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}  # spark-submit itself refuses a named file that is missing
    found = [_SETTING.fullmatch(line.strip()) for line in lines]
    return {match[1]: match[2] for match in found if match is not None}
