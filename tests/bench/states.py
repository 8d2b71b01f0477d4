"""States of the code: the working tree, and the tree of a commit set up beside it.

The tree of a commit lies in .cache/pair/<its id>, with a .venv that its own .ci/setup makes from
its own requirements, and is used again by the next run. Its modules may be cut in quite another way
than those of the working tree, so nothing of it is ever imported here: all that is known of it is
that `.ci/setup` makes `.venv/bin/aerobee`, and that this starts a broker.
"""

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench.alone import CannotMeasure

_WHO = """\
import json, platform, aerobee
print(json.dumps([aerobee.__path__[0], platform.python_version()]))
"""


@dataclass(frozen=True, slots=True)
class State:
    """A tree with its .venv. `name` is what the report calls it, `what` says which one it is."""

    name: str
    what: str
    tree: Path
    python: str

    @property
    def interpreter(self) -> str:
        return str(self.tree / ".venv" / "bin" / "python")

    @property
    def command(self) -> str:
        return str(self.tree / ".venv" / "bin" / "aerobee")


def working_tree(root: Path) -> State:
    """The project at `root` as it lies there, whose .venv `make setup` has made."""
    changed = _git(root, "status", "--porcelain").splitlines()
    what = f"the working tree: {_title(root, 'HEAD')}"
    what += f", and {len(changed)} changed files" if changed else ", without changes"
    return State("this", what, root, _python_of(root))


def commit(root: Path, revision: str, cache: Path) -> State:
    """The state of a commit of the project at `root`, set up in a folder of `cache`.

    Raises CannotMeasure, with a sentence for the user.
    """
    if not revision:
        raise CannotMeasure(
            "say which commit to compare with, for example BASE=HEAD or BASE=main~3"
        )
    try:
        name = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        full = _git(root, *name).strip()
    except CannotMeasure:
        raise CannotMeasure(
            f"{revision!r} is no commit here; git log shows those there are, git fetch brings more"
        ) from None
    tree = cache / full
    if not tree.exists():
        _check_out(root, full, tree)
    _make_venv(tree)
    return State("base", _title(root, full), tree, _python_of(tree))


def _git(root: Path, *words: str, env: dict[str, str] | None = None) -> str:
    argv = ["git", "-C", str(root), *words]
    try:
        run = subprocess.run(
            argv, env={**os.environ, **(env or {})}, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise CannotMeasure("git is not installed, and only git has the other states") from None
    if run.returncode:
        raise CannotMeasure(f"git {words[0]} failed in {root}: {run.stderr.strip()}")
    return run.stdout


def _title(root: Path, revision: str) -> str:
    return _git(root, "log", "-1", "--format=%h (%s)", revision).strip()


def _check_out(root: Path, full: str, tree: Path) -> None:
    """Puts the files of a commit into `tree`, which appears only when all of them are there.

    They are files alone: a `git worktree` would stay in the repository's list when .cache is
    removed.
    """
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix="new-") as folder:
        new = Path(folder) / "tree"
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(root, "read-tree", full, env=env)
        _git(root, "checkout-index", "--all", f"--prefix={new}/", env=env)
        new.rename(tree)


def _make_venv(tree: Path) -> None:
    """Runs the tree's own .ci/setup, which does nothing when everything is there."""
    if not (tree / ".ci" / "setup").exists():
        raise CannotMeasure(
            f"the commit in {tree} has no .ci/setup, so it cannot be set up by itself"
        )
    # In a process group, so that nothing of it goes on when this run is interrupted.
    setup = subprocess.Popen([".ci/setup"], cwd=tree, stdin=subprocess.DEVNULL, process_group=0)
    try:
        code = setup.wait()
    except BaseException:
        os.killpg(setup.pid, signal.SIGKILL)
        setup.wait()
        raise
    if code:
        raise CannotMeasure(f"{tree}/.ci/setup failed, see above; fix what it says and run again")


def _python_of(tree: Path) -> str:
    """Version of the tree's Python, having made sure that it runs the tree's own code."""
    interpreter = tree / ".venv" / "bin" / "python"
    if not interpreter.exists():
        raise CannotMeasure(f"{tree} has no .venv: run make setup there")
    said = subprocess.run(
        [str(interpreter), "-c", _WHO], cwd="/", check=True, capture_output=True, text=True
    ).stdout
    package, version = json.loads(said)
    if Path(package).resolve() != (tree / "aerobee").resolve():
        raise CannotMeasure(f"{interpreter} runs the code in {package}, not that of its tree")
    return str(version)
