"""docs/pipeline.md: its commands are commands, its functions are there, its sums are right."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from aerobee.cli.arguments.parser import build_parser
from aerobee.pipeline.jobs.stream.job_plan import read_plan
from aerobee.pipeline.jobs.stream.tables.packages import PACKAGES
from aerobee.pipeline.jobs.submit import parse_time
from aerobee.pipeline.launch.words import split

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "pipeline.md").read_text()
STREAM_PAGE = (ROOT / "docs" / "pipeline-stream.md").read_text()


def commands(page: str) -> list[str]:
    lines = [line.strip() for line in page.replace("\\\n", " ").splitlines()]
    found = [line.rpartition("/bin/")[2] if line.startswith("/") else line for line in lines]
    return [line.partition(" < ")[0] for line in found if line.startswith("aerobee pipeline ")]


COMMANDS = commands(PAGE)


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_of_the_page_is_one(line: str) -> None:
    parsed = build_parser().parse_args(shlex.split(line)[1:])
    if parsed.command == "pipeline launch":
        assert split(parsed.words, parsed.launch).application or parsed.launch == "shell"
    else:
        assert parsed.command == "pipeline"


def test_the_page_shows_every_job() -> None:
    every = [build_parser().parse_args(shlex.split(line)[1:]) for line in COMMANDS]
    parsed = [one for one in every if one.command == "pipeline"]
    assert {one.launch for one in every if one not in parsed} == {"shell", "submit"}
    jobs = {"audit", "rebuild", "archive", "replay", "traffic", "retention", "dlq"}
    assert {one.job for one in parsed} == jobs
    assert all(f"| {job} |" in PAGE for job in jobs)


@pytest.mark.parametrize("line", commands(STREAM_PAGE))
def test_each_stream_of_its_page_is_one(line: str) -> None:
    parsed = build_parser().parse_args(shlex.split(line)[1:])
    made = read_plan(parsed, parse_time, {"NAMESRV_ADDR": "127.0.0.1:9876"})
    packages = [maven for one in PACKAGES.values() for maven in one.maven.values()]
    assert parsed.packages in (None, *packages)
    assert parsed.packages is None or made.table.format in ("delta", "iceberg")


def test_the_page_of_streams_names_the_versions_that_are_tested() -> None:
    for lake in ("delta", "iceberg"):
        pinned = (ROOT / "requirements" / f"lake-{lake}.txt").read_text()
        version = re.search(r"^pyspark==(\d+\.\d+)(\S+)$", pinned, re.MULTILINE)
        assert version is not None
        maven = PACKAGES[lake].maven[version[1]]
        assert f"| {version[1]}{version[2]} | `{maven}` |" in STREAM_PAGE
        pom = (ROOT / "tests" / "spark" / "java" / f"lake-{lake}.xml").read_text()
        assert all(f">{part}</" in pom for part in maven.split(":"))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(aerobee\.pipeline\.[\w.]+)`", PAGE))))
def test_each_function_of_the_page_is_there(name: str) -> None:
    pytest.importorskip("pyarrow")
    module, _, function = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))


def test_programs_of_the_page_compile() -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert programs
    for program in programs:
        compile(program, "docs/pipeline.md", "exec")


def test_the_sums_of_the_page_are_right() -> None:
    day = 10**12
    assert f"{day / 86_400 / 1e6:.1f} MB/s" == "11.6 MB/s"
    assert round(day / 1000 / 86_400, -2) == 11_600
    assert round(5 * 11_600 * 1000 / 1e6) == 58
    assert -(-day // 2**30) == 932
    assert round(day / (128 * 2**20), -1) == 7_450
    assert 58_000 / 400_000 == 0.145
    assert 10**9 / 400_000 + day / 50e6 == 22_500
    assert 22_500 / 3600 == 6.25
    assert round(22_500 / 24, -1) == 940
    assert round(day / 3600 / 1e6) == 278
    assert round(20e6 * 28 * 3 / 1e9, 1) == 1.7
    assert round(10 * day / 86_400 / 1e6) == 116
    assert round(5 * 10 * day / 86_400 / 1e6) == 579
    assert 580_000 / 400_000 == 1.45
    assert 22_500 * 10 / 24 == 9_375
    assert round(3600 * 580_000 / 1e9, 1) == 2.1
    assert round(3600 * 580_000 / (12 * 400_000)) == 435
    assert round(12 * 86_400 / 10, -4) == 100_000
    assert round(1e6 / 6.3, -4) == 160_000
    assert 100_000 * (200 + 250) * 2 == 90e6
    for text in (
        "11.6 MB/s",
        "11,600/s",
        "932 segments",
        "7,450 tasks",
        "0.145",
        "6.25",
        "278 MB/s",
        "116 MB/s",
        "579 MB/s",
        "9,375 CPU-seconds",
        "435 seconds",
        "160,000 rows a second",
        "90 MB/s",
    ):
        assert text in PAGE
