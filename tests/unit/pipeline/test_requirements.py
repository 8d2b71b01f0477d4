"""What `pip install '.[spark]'` brings is what the pipeline's tests run with."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
#: What PySpark asks for, and what our reader decodes with.
NEEDED = {"pyspark", "numpy", "pandas", "pyarrow"}


@pytest.mark.parametrize("version", ["4.0", "4.3"])
def test_the_extra_brings_what_the_tests_run_with(version: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = [Requirement(text) for text in project["optional-dependencies"]["spark"]]
    assert {one.name for one in extra} == NEEDED
    lines = (ROOT / "requirements" / f"spark-{version}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert not [one for one in extra if pinned[one.name] not in one.specifier]
