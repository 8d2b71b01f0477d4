"""The arguments of `aerobee pipeline`, which the pipeline declares itself."""

import argparse

from aerobee.pipeline.jobs.arguments import add_jobs
from aerobee.pipeline.launch.words import add_launches


def add_pipeline(parser: argparse.ArgumentParser) -> None:
    """The jobs and launches below the command `parser`."""
    jobs = parser.add_subparsers(metavar="JOB", required=True)
    add_launches(jobs)
    add_jobs(jobs)
