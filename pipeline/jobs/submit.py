"""The jobs as an application of spark-submit; the wheel is all that executors need.

    spark-submit --py-files aerobee.whl submit.py audit /data/store

`python -m aerobee.pipeline.jobs.submit --file` says where this file is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime

from aerobee.printable import printable, printable_json


def main(arguments: Sequence[str]) -> int:
    """Run one job, print its report; the exit code."""
    from aerobee.pipeline.jobs.arguments import build_parser
    from aerobee.pipeline.jobs.common.job_result import JobFailed
    from aerobee.pipeline.jobs.run import report_json, run_job

    if list(arguments) == ["--file"]:
        print(__file__)
        return 0
    parsed = build_parser().parse_args(arguments)
    try:
        result = run_job(parsed, parse_time, _say)
    except JobFailed as error:
        _say(f"{parsed.job}: {error}")
        return error.code
    if parsed.json:
        print(printable_json(json.dumps(report_json(result), ensure_ascii=False, default=str)))
    else:
        print("\n".join(map(printable, result.lines)))
    return result.code


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of digits or an ISO time (local unless it says otherwise).

    Raises JobFailed for another text.
    """
    from aerobee.pipeline.jobs.common.job_result import USAGE, JobFailed

    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise JobFailed(f"not a time: {text!r} (such as 2025-03-01T12:30, or ms)", USAGE) from None


def _say(text: str) -> None:
    print(printable(text, keep="\n"), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
