"""`aerobee pipeline`: arguments, what is imported for them, and how errors end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aerobee.cli.arguments.parser import build_parser
from aerobee.cli.main import main
from aerobee.pipeline.jobs import run, submit
from aerobee.pipeline.jobs.arguments import size
from aerobee.pipeline.jobs.common.job_result import JobFailed, JobResult

JOBS = ("audit", "rebuild", "archive", "replay", "traffic", "retention", "dlq")


@pytest.mark.parametrize("job", JOBS)
def test_each_job_is_a_command_with_the_same_arguments_for_spark_submit(job: str) -> None:
    more = ["--to", "out"] if job in ("rebuild", "archive") else []
    arguments = [job, "a", "b", "--mode", "failfast", *more]
    parsed = build_parser().parse_args(["pipeline", *arguments])
    assert (parsed.command, parsed.job, parsed.directory) == ("pipeline", job, ["a", "b"])
    assert vars(parsed) == vars(submit_parser().parse_args(arguments))


def submit_parser():  # type: ignore[no-untyped-def]
    from aerobee.pipeline.jobs.arguments import build_parser

    return build_parser()


def test_the_parser_imports_nothing_heavy() -> None:
    heavy = "[m for m in ('pyspark', 'numpy', 'pyarrow', 'matplotlib') if m in sys.modules]"
    code = (
        "import sys; from aerobee.cli.arguments.parser import build_parser; build_parser(); "
        f"print({heavy})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_sizes_have_units() -> None:
    assert [size(text) for text in ("5", "1k", "1.5G", "2T")] == [5, 1024, 3 << 29, 2 << 40]
    with pytest.raises(SystemExit):
        build_parser().parse_args(["pipeline", "archive", "d", "--to", "t", "--range-bytes", "x"])


def test_a_job_that_fails_says_why_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> JobResult:
        raise JobFailed("/nothing does not exist", 3)

    monkeypatch.setattr("aerobee.cli.pipeline.run_job", refuse)
    monkeypatch.setattr(run, "run_job", refuse)
    assert main(["pipeline", "audit", "/nothing"]) == 3
    assert capsys.readouterr().err == "aerobee: pipeline audit: /nothing does not exist\n"
    assert submit.main(["audit", "/nothing"]) == 3
    assert capsys.readouterr().err == "audit: /nothing does not exist\n"


def test_a_report_is_printed_for_people_or_scripts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def done(*_: object) -> JobResult:
        result = JobResult("audit", facts={"records": 5}, code=1)
        result.say("read", "a \x1b[31mtopic")
        return result

    monkeypatch.setattr("aerobee.cli.pipeline.run_job", done)
    assert main(["pipeline", "audit", "d"]) == 1
    assert capsys.readouterr().out == "read      a \\x1b[31mtopic\n"
    assert main(["pipeline", "audit", "d", "--json"]) == 1
    assert '"records": 5' in capsys.readouterr().out


def test_settings_of_spark_are_pairs() -> None:
    parsed = build_parser().parse_args(["pipeline", "audit", "d", "--conf", "spark.x"])
    with pytest.raises(JobFailed, match="not KEY=VALUE"):
        run.run_job(parsed, int)
