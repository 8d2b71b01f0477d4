"""`aerobee pipeline NAME`: one of the jobs, with its report; `shell` and `submit`, Spark itself."""

import argparse
import os
import subprocess
import sys

from aerobee.cli.printing.output import USAGE, CommandFailed, print_json, say, show
from aerobee.cli.printing.times import parse_time
from aerobee.pipeline.jobs.common.job_result import COULD_NOT, JobFailed
from aerobee.pipeline.jobs.run import report_json, run_job
from aerobee.pipeline.launch.command import build
from aerobee.pipeline.launch.modules import delete
from aerobee.pipeline.launch.words import split


def run_pipeline(parsed: argparse.Namespace) -> int:
    """Run the job; its exit code. A job that cannot be done ends with a text."""
    try:
        result = run_job(parsed, parse_time, say)
    except JobFailed as error:
        code = error.code if error.code in (1, USAGE) else COULD_NOT
        raise CommandFailed(f"pipeline {parsed.job}: {error}", code) from error
    if parsed.json:
        print_json(report_json(result))
    else:
        for line in result.lines:
            show(line)
    return result.code


def launch(parsed: argparse.Namespace) -> int:
    """Become the shell, or spark-submit. Returns only where nothing of ours runs in the end."""
    try:
        words = split(parsed.words, parsed.launch)
        if words.help:
            parsed.print_help()
            return 0
        ready = build(parsed.launch, words, os.environ, is_terminal=sys.stdin.isatty())
    except JobFailed as error:
        raise CommandFailed(f"pipeline {parsed.launch}: {error}", error.code) from error
    if ready.archive is None or not ready.is_remote:
        os.execvpe(ready.argv[0], ready.argv, ready.environ)
    try:
        return subprocess.run(ready.argv, env=ready.environ, check=False).returncode
    finally:
        delete(ready.archive)
