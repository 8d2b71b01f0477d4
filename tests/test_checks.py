"""Lint and types, which a whole run looks at beside its tests; `make check` does so before them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.parts import begin_watch_anew

ROOT = Path(__file__).parents[1]
#: Types of a clean clone take a minute alone, and this runs beside everything else.
PATIENCE_TURNS, TURN_S = 15, 60


@pytest.mark.parametrize("target", ["lint", "types"])
def test_make_finds_nothing(target: str, tmp_path: Path) -> None:
    # This may run below a make whose flags are not meant for it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    said = tmp_path / "said"
    with said.open("wb") as file:
        run = subprocess.Popen(["make", target], cwd=ROOT, env=environ, stdout=file, stderr=file)
    for _ in range(PATIENCE_TURNS):
        begin_watch_anew()
        try:
            run.wait(TURN_S)
            break
        except subprocess.TimeoutExpired:
            continue
    run.kill()
    assert run.wait() == 0, said.read_text()
