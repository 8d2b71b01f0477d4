"""Tags and contents of the wheels; `make wheels` builds and tries what is given out."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from aerobee.native.form import VARIABLE, is_built
from hatch_build import MODULES
from tests.pythons import FORMS, ROOT
from tests.wheels import build


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def expected_sources() -> set[str]:
    """All of the package in the tree: Python, its types, what the compiled form is made from."""
    links = [path for path in (ROOT / "aerobee").iterdir() if path.is_symlink()]
    found = {f"aerobee/{path.name}" for path in (ROOT / "aerobee").glob("*.py")}
    for link in links:
        for path in link.resolve().rglob("*"):
            if path.suffix in (".py", ".pyi", ".pyx", ".pxd") and ".venv" not in path.parts:
                found.add(f"aerobee/{link.name}/{path.relative_to(link.resolve())}")
    return found | {path.name for path in ROOT.glob("pyspark_*.py")}


def test_the_plain_wheel_fits_every_python_and_has_nothing_compiled(tmp_path: Path) -> None:
    wheel = build("wheel", tmp_path, Path(sys.executable), {VARIABLE: FORMS["plain"]})
    assert wheel.name.endswith("-py3-none-any.whl")
    names = names_in(wheel)
    assert expected_sources() <= names
    assert not [name for name in names if name.endswith((".so", ".c"))]
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "aerobee", "pyspark_aerobee.py", "pyspark_aerobee_store.py",
    }  # fmt: skip


def test_the_compiled_wheel_fits_its_python_and_has_every_module(tmp_path: Path) -> None:
    if not is_built():
        pytest.skip("the compiled form was not built here")
    wheel = build("wheel", tmp_path, Path(sys.executable))
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert f"-{tag}-{tag}-linux_" in wheel.name
    names = names_in(wheel)
    compiled = {f"aerobee/native/{module}{EXTENSION_SUFFIXES[0]}" for module in MODULES}
    assert {name for name in names if name.endswith(".so")} == compiled
    assert expected_sources() <= names
    assert not [name for name in names if name.endswith(".c")]
    # An executor that is given it as an archive can load no module of it, and runs plain.
    asked = (
        "import aerobee; from aerobee.native import form; "
        "print(aerobee.__file__, form.chosen_decode())"
    )
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    ran = subprocess.run(
        [sys.executable, "-c", asked], env=environ | {"PYTHONPATH": str(wheel)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout.split() == [f"{wheel}/aerobee/__init__.py", "None"], ran.stderr
