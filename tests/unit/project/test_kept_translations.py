"""Cython's C is kept by the content of what it was made from: for builds, not over changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hatch_build import MODULES
from tests.native_builds import make_empty_modules

ROOT = Path(__file__).parents[3]
DECLARED = "cdef inline int number(): return {}\n"
USES = "from aerobee.native.common cimport number\nseen = number()\n"


def translated(root: Path, kept: Path, text: str, declared: int = 41) -> str:
    """The C of one of the modules, in a new tree where that one has this text.

    By a process of its own, because Cython remembers what it has read; without a compiler, because
    what comes behind the translation is not looked at.
    """
    folder = make_empty_modules(root)
    (folder / "common.pxd").write_text(DECLARED.format(declared))
    (folder / "sends.pyx").write_text(text)
    program = "import sys; from pathlib import Path; import hatch_build; "
    program += "hatch_build.build(Path(sys.argv[1]), ('-O0',), Path(sys.argv[2]))"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(root), str(kept)],
        env=os.environ | {"CC": "/bin/false"}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert "/bin/false" in ran.stderr.splitlines()[-1], ran.stderr
    return next((root / "build").rglob("sends.c")).read_text()


def test_a_second_tree_with_the_same_sources_translates_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = translated(tmp_path / "first", kept, USES)
    made = sorted(kept.iterdir())
    assert len(made) == len(MODULES)
    assert translated(tmp_path / "second", kept, USES) == first
    assert sorted(kept.iterdir()) == made


def test_a_changed_source_is_translated(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    translated(tmp_path / "first", kept, "seen = 'once'\n")
    assert "another text" in translated(tmp_path / "second", kept, "seen = 'another text'\n")


def test_a_changed_declaration_has_all_that_might_use_it_translated(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    translated(tmp_path / "first", kept, USES)
    made = len(list(kept.iterdir()))
    assert "7654321" in translated(tmp_path / "second", kept, USES, declared=7654321)
    assert len(list(kept.iterdir())) == made + len(MODULES)
