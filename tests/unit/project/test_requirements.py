"""The pipeline's tests run with the packages that `pip install '.[spark]'` brings."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.unit.pipeline.stores import write_store

ROOT = Path(__file__).parents[3]
#: Packages that PySpark asks for, and those with which our reader decodes.
NEEDED = {"pyspark", "numpy", "pandas", "pyarrow"}


@pytest.mark.parametrize("version", ["4.0", "4.3"])
def test_the_extra_brings_what_the_tests_run_with(version: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = [Requirement(text) for text in project["optional-dependencies"]["spark"]]
    assert {one.name for one in extra} == NEEDED
    lines = (ROOT / "requirements" / f"spark-{version}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert not [one for one in extra if pinned[one.name] not in one.specifier]


READ_WITHOUT_MSGSPEC = """
import sys
sys.modules["msgspec"] = None
from aerobee.pipeline.files.store_options import StoreOptions
from aerobee.pipeline.files.store_plan import plan
from aerobee.pipeline.files.part_reader import read_part
options = StoreOptions.parse({"path": sys.argv[1]})
parts = plan(options, options.selection)
print(sum(one.num_rows for part in parts for one in read_part(part, options, options.selection)))
"""


def test_a_sound_store_is_read_with_numpy_and_arrow_alone(tmp_path: Path) -> None:
    write_store(tmp_path / "store", 60)
    command = [sys.executable, "-c", READ_WITHOUT_MSGSPEC, str(tmp_path / "store")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "60"
