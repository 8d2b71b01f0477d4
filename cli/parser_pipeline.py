"""The arguments of `aerobee pipeline`; the jobs declare their own."""

import argparse
from typing import TYPE_CHECKING

from aerobee.pipeline.jobs.arguments import add_jobs

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Commands = _SubParsersAction[argparse.ArgumentParser]


def add_pipeline(commands: "Commands") -> None:
    """The group and its commands."""
    text = (
        "jobs on Spark over a store's files: audit, rebuild, archive, replay, traffic, retention, "
        "dlq"
    )
    parser = commands.add_parser("pipeline", help=text, description=text)
    add_jobs(parser.add_subparsers(metavar="JOB", required=True))
