"""A job's arguments are checked before Spark starts, and refused in one line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from aerobee.cli.main import main
from aerobee.pipeline.jobs import run as run_module
from aerobee.pipeline.jobs import submit
from aerobee.pipeline.jobs.arguments import build_parser
from aerobee.pipeline.jobs.checks import check
from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.run import run_job
from aerobee.pipeline.jobs.targets.ledger import ArchiveSelection, Ledger, StagedRows
from aerobee.pipeline.jobs.targets.target import Target
from tests.unit.pipeline.stores import write_store

ROWS = StagedRows(9, 0, 0, {})


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(run_module, "open_session", start)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("arguments") / "store"
    write_store(root, 5)
    return str(root)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("audit NOWHERE", 3, "NOWHERE does not exist"),
        ("audit FOLDER", 3, "FOLDER is no store"),
        ("traffic FILE", 3, "FILE cannot be read"),
        ("audit STORE STORE/../other", 3, "two stores"),
        ("traffic STORE --begin yesterday", 2, "not a time: 'yesterday'"),
        ("replay STORE --end 2026-13-01 --dry-run", 2, "not a time: '2026-13-01'"),
        ("audit STORE --conf spark.ui.port", 2, "--conf spark.ui.port: not KEY=VALUE"),
        ("audit STORE --delay-levels soon", 2, "--delay-levels 'soon'"),
        ("audit STORE --master nonsense", 2, "--master nonsense: must be local[N]"),
        ("replay STORE", 2, "needs --name-servers (or NAMESRV_ADDR), or --dry-run"),
        ("replay STORE --dry-run --topic SCHEDULE_TOPIC_XXXX", 2, "with --to"),
        ("replay STORE --dry-run --to Or/ders", 2, "--to 'Or/ders': the specified topic contains"),
        ("replay STORE --dry-run --topic rmq_sys_aerobee_stage --to x", 2, "is no message"),
        ("replay FOLDER --archive --dry-run", 3, "FOLDER is no archive"),
        ("replay FOLDER FOLDER --archive --dry-run", 2, "one archive at a time"),
        ("archive STORE --to FOLDER --check", 3, "FOLDER is no archive"),
        ("archive STORE --to FOLDER --topic rmq_sys_aerobee_stage", 2, "is no message"),
        ("archive STORE --to FOLDER --topic Nope", 3, "STORE has no queue of Nope; it has"),
        ("archive STORE --to FOLDER --begin 2026-02-01 --end 2026-01-01", 2, "is not before"),
        ("archive STORE --to HELD", 2, "HELD holds messages of Orders; this run is for all"),
        ("archive STORE --to HELD --check --topic Orders", 2, "--check looks at all of it"),
        ("archive STORE --to FILE", 3, "cannot make the directory FILE: File exists"),
        ("archive STORE --to nosuch://host/x", 2, "nosuch://host/x: "),
        ("rebuild STORE --to FILE/out", 3, "cannot make the directory FILE/out: Not a directory"),
        ("rebuild STORE --to s3://bucket/out", 2, "--to s3://bucket/out: must be a directory"),
        ("traffic STORE --plots FILE", 3, "cannot make the directory FILE"),
        ("archive STORE --to STORE/sub", 2, "--to STORE/sub lies in STORE, "),
        ("archive STORE --to STORE/..", 2, "STORE lies in --to STORE/..;"),
        ("archive STORE --to STORE", 2, "lies in STORE, "),
        ("rebuild STORE --to STORE/out", 2, "lies in STORE, "),
        ("audit STORE --output STORE/out", 2, "lies in STORE, "),
        ("rebuild STORE --to FULL", 3, "FULL is not empty"),
        ("traffic STORE --begin 2026-02-01 --end 2026-01-01", 2, "--begin 2026-02-01 is not"),
        ("audit STORE --output FILE", 3, "cannot make the directory FILE"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: str,
    code: int,
    text: str,
    store: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {"NOWHERE": "nowhere", "FOLDER": "folder", "FILE": "file", "FULL": "full"}
    names |= {"HELD": "held"}
    selection = ArchiveSelection(("Orders",), None, None)
    Ledger(Target(str(tmp_path / "held")), selection).archive(0, 9, lambda *_: ROWS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "full" / "consumequeue").mkdir(parents=True)
    (tmp_path / "file").touch()
    other = Path(store).parent / "other"
    if not other.exists():
        write_store(other, 5)

    def filled(given: str) -> str:
        for name, path in names.items():
            given = given.replace(name, str(tmp_path / path))
        return given.replace("STORE", store)

    words = filled(arguments).split()
    assert main(["pipeline", *words]) == code
    said = capsys.readouterr().err
    assert filled(text) in said
    assert said.count("\n") == 1
    # And the same for spark-submit.
    assert submit.main(words) == code
    said = capsys.readouterr().err
    assert filled(text) in said
    assert said.count("\n") == 1


def test_name_servers_of_the_environment_do_for_a_replay(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = build_parser().parse_args(["replay", store])
    with pytest.raises(JobFailed, match="NAMESRV_ADDR"):
        check(parsed, submit.parse_time)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    check(parsed, submit.parse_time)


def test_pictures_without_matplotlib_are_refused_before_spark_starts(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    words = ["traffic", store, "--plots", str(tmp_path / "plots")]
    with pytest.raises(JobFailed, match=r"pip install '\.\[plots\]'.*--no-pictures") as caught:
        check(build_parser().parse_args(words), submit.parse_time)
    assert caught.value.code == 3
    check(build_parser().parse_args([*words, "--no-pictures"]), submit.parse_time)


def test_no_pictures_are_asked_for_with_plots_only(store: str) -> None:
    parsed = build_parser().parse_args(["traffic", store, "--no-pictures"])
    with pytest.raises(JobFailed, match="--no-pictures goes with --plots OUT") as caught:
        check(parsed, submit.parse_time)
    assert caught.value.code == 2


def test_hours_are_not_negative(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["retention", "store", "--hours", "-1"])
    assert "--hours: must not be negative: -1" in capsys.readouterr().err


def test_nothing_is_started_without_pyspark_or_java(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    parsed: argparse.Namespace = build_parser().parse_args(["audit", store])
    with pytest.raises(JobFailed, match=r"pip install '\.\[spark\]'") as caught:
        run_job(parsed, submit.parse_time)
    assert caught.value.code == 3
