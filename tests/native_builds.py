"""Builds of the compiled form that only tests make: with named steps, with two of them swapped,
with the sanitizers of the C compiler. The sources are those of `native/`, copied.

    python -m tests.native_builds sanitized      builds it, and says where it is

A process takes a build by `use`, before it imports anything of the compiled form; pytest, where
AEROBEE_TEST_NATIVE names its folder (`make sanitize`).
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import aerobee.native

_SOURCES = Path(aerobee.native.__file__).parent
VARIABLE = "AEROBEE_TEST_NATIVE"
_ROOT = Path(__file__).parents[1]
_BUILDS = _ROOT / ".cache" / "native"


class Build(NamedTuple):
    """One kind: options of the C compiler, and what is changed in which file.

    One with changes begins with a copy of the kind `like`, the same without them, so that only what
    is changed is compiled."""

    options: tuple[str, ...]
    changes: Mapping[str, tuple[tuple[str, str], ...]] = {}
    like: str | None = None


_STEPS = ("-O0", "-DAEROBEE_STEPS")
_SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
BUILDS = {
    "steps": Build(_STEPS),
    # The size is there before the record is: whoever looks meanwhile takes it for whole.
    "swapped": Build(
        _STEPS,
        {
            "sends.pyx": (
                ("            publish32(record, <uint32_t> size)\n", ""),
                (
                    "            put32(record + MAGIC_AT, MAGIC)\n",
                    "            put32(record + MAGIC_AT, MAGIC)\n"
                    "            publish32(record, <uint32_t> size)\n",
                ),
            )
        },
        like="steps",
    ),
    "sanitized": Build(_SANITIZED),
    # A frame is believed to be there whole, whatever was read of it.
    "overrun": Build(
        _SANITIZED, {"requests.pyx": ((" or total > size - position - 4", ""),)}, like="sanitized"
    ),
}


def folder_of(kind: str) -> Path:
    """Where the modules of a build are; made if they are not there yet.

    By a process of its own: Cython remembers the folders it has made. Raises CalledProcessError.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.native_builds", kind]
    ran = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Path(ran.stdout.splitlines()[-1])


def _made(kind: str) -> Path:
    build = BUILDS[kind]
    texts = _texts(build)
    about = repr((sys.version, build.options, sorted(texts.items()))).encode()
    root = _BUILDS / f"{kind}-{hashlib.sha256(about).hexdigest()[:16]}"
    _BUILDS.mkdir(parents=True, exist_ok=True)
    with (_BUILDS / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "built").exists():
            for old in _BUILDS.glob(f"{kind}-*"):
                shutil.rmtree(old)
            _make(root, build, texts)
    return _modules_in(root)


def _texts(build: Build) -> dict[str, str]:
    """The sources as this build has them, by name."""
    texts = {
        path.name: path.read_text()
        for path in sorted(_SOURCES.iterdir())
        if path.suffix in (".pyx", ".pxd")
    }
    for name, changes in build.changes.items():
        for old, new in changes:
            assert texts[name].count(old) == 1, f"{name} has no longer one {old!r}"
            texts[name] = texts[name].replace(old, new)
    return texts


def _make(root: Path, build: Build, texts: Mapping[str, str]) -> None:
    import hatch_build  # with the tools of builds, which other processes need not have

    folder = root / "aerobee" / "native"
    if build.like is None:
        folder.mkdir(parents=True)
        for package in (folder.parent, folder):
            (package / "__init__.py").touch()
    else:
        shutil.copytree(_root_of(_made(build.like)), root)
        (root / "built").unlink()
    for name, text in texts.items():
        # A source that is the same keeps its time, so that it is not compiled again.
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)
    hatch_build.build(root, build.options, _ROOT / hatch_build.KEPT)
    (root / "built").touch()


def _modules_in(root: Path) -> Path:
    return next((root / "build" / "native").glob("*/lib")) / "aerobee" / "native"


def _root_of(modules: Path) -> Path:
    return next(folder for folder in modules.parents if (folder / "built").exists())


def make_empty_modules(root: Path) -> Path:
    """The folder of the compiled form in `root`, with its modules, which are empty."""
    import hatch_build  # as above

    folder = root / "aerobee" / "native"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    for module in hatch_build.MODULES:
        (folder / f"{module}.pyx").touch()
    return folder


def use(folder: Path) -> None:
    """Have this process import the modules of a build instead of the usual ones."""
    assert any(folder.glob("*.so")), f"there is no build in {folder}"
    aerobee.native.__path__.insert(0, str(folder))


if __name__ == "__main__":
    print(_made(sys.argv[1]))
