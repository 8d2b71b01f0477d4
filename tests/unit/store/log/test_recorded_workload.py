"""The command that compares two states of the code by the files they leave still runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path


def test_the_recorded_workload_tells_what_each_step_leaves(tmp_path: Path) -> None:
    options = ("--damages", "1", "--kinds", "plain")
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.golden.workload", str(tmp_path / name), *options],
            check=True, capture_output=True, text=True,
        ).stdout
        for name in ("one", "two")
    ]  # fmt: skip
    assert outputs[0] == outputs[1], "the same code leaves the same files"
    files = re.findall(r"^(\S+) \S+ [0-9a-f]{64}$", outputs[0], re.MULTILINE)
    assert len(Counter(files)) > 3
    assert "commitlog/" in outputs[0]
