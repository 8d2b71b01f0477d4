"""`aerobee pipeline NAME`: one of the jobs, with its report."""

import argparse

from aerobee.cli.output import USAGE, CommandFailed, print_json, printable, say
from aerobee.cli.times import parse_time
from aerobee.pipeline.jobs.result import COULD_NOT, JobFailed
from aerobee.pipeline.jobs.run import report_json, run_job


def run_pipeline(parsed: argparse.Namespace) -> int:
    """Run the job; its exit code. What it cannot do ends it with a text."""
    try:
        result = run_job(parsed, parse_time, say)
    except JobFailed as error:
        code = error.code if error.code in (1, USAGE) else COULD_NOT
        raise CommandFailed(f"pipeline {parsed.job}: {error}", code) from error
    if parsed.json:
        print_json(report_json(result))
    else:
        for line in result.lines:
            print(printable(line))
    return result.code
