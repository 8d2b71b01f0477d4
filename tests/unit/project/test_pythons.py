"""Which Pythons are found and taken, and that the package claims none but those that were run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests import campaign, pythons
from tests.pythons import FORMS, ROOT, SUITE, Python, best, candidates, oldest


def fake(folder: Path, name: str, says: str, code: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    program.chmod(0o755)


def python(minor: int, micro: int, has_headers: bool = True, path: str = "p") -> Python:
    return Python(has_headers, (3, minor, micro), Path(path))


def test_what_a_name_is_is_asked(tmp_path: Path) -> None:
    fake(tmp_path / "bin", "python3.12", "3 12 4 1 /some where/python3.12")
    fake(tmp_path / "bin", "python3.13", "wrapper around nothing", code=127)
    fake(tmp_path / "bin", "python3.14", "")  # what _ASK does with a preview
    fake(tmp_path / "bin", "python3-config", "3 12 4 1 /no/python")
    (tmp_path / "bin" / "python3.15").write_text("no program")
    (tmp_path / "bin" / "python3").symlink_to("python3.12")
    found = list(candidates([tmp_path / "bin", tmp_path / "nowhere", tmp_path / "bin"]))
    assert found == [Python(True, (3, 12, 4), Path("/some where/python3.12"))]
    assert found[0].version == "3.12"


def test_of_a_minor_version_the_newest_with_headers_is_taken() -> None:
    bare = python(12, 9, has_headers=False)
    assert best([python(13, 0), bare, python(12, 1), python(12, 4)], (3, 11)) == [
        python(12, 4),
        python(13, 0),
    ]
    assert best([bare], (3, 11)) == [bare]


def test_a_version_before_the_first_is_not_taken() -> None:
    assert best([python(10, 13), python(9, 1)], oldest()) == []


def test_versions_of_pyenv_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    fake(tmp_path / "versions" / "3.12.1" / "bin", "python3", "3 12 1 1 /a")
    fake(tmp_path / "versions" / "3.13.0" / "bin", "python3.13", "3 13 0 1 /b")
    assert [one.path for one in pythons.found()] == [Path("/a"), Path("/b")]


def test_an_environment_is_no_python_of_its_own() -> None:
    """The environment that runs this test: its Python is found by itself."""
    assert not list(candidates([ROOT / ".venv" / "bin"]))


def test_classifiers_name_what_the_campaign_has_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    named = {line for line in project["classifiers"] if line.startswith(prefix)}
    assert f"{prefix}{oldest()[1]}" in named
    # The campaign's row, or one of runs by hand.
    page = campaign.PAGE.read_text().splitlines()
    rows = [line for line in page if line.startswith((f"| {SUITE} |", f"| {SUITE}, "))]
    for line in named:
        version = line.rpartition(" ")[2]
        was_run = any(all(f"on {version} {form}" in row for form in FORMS) for row in rows)
        assert was_run, f"{version} was not run"
