"""States of the code for `make pair`, in a small repository with a set-up of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.alone import CannotMeasure
from tests.bench.states import commit, working_tree

SETUP = """\
#!/bin/sh
echo run >>setups
mkdir -p .venv/bin
cat >.venv/bin/python <<END
#!/bin/sh
PYTHONPATH=$PWD exec {python} "\\$@"
END
chmod +x .venv/bin/python
"""


def git(root: Path, *words: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    run = subprocess.run(
        ["git", "-C", str(root), *author, *words], check=True, capture_output=True, text=True
    )
    return run.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of two commits, the first with the text `one`, and a change on top."""
    root = tmp_path / "project"
    (root / ".ci").mkdir(parents=True)
    (root / "store").mkdir()
    (root / "aerobee").mkdir()
    (root / "aerobee" / "__init__.py").write_text("")
    (root / "aerobee" / "store").symlink_to("../store")
    (root / ".gitignore").write_text(".venv/\nsetups\n__pycache__/\n")
    setup = root / ".ci" / "setup"
    setup.write_text(SETUP.format(python=sys.executable))
    setup.chmod(0o755)
    git(root, "init", "--quiet")
    for text in ("one", "two"):
        (root / "store" / "text").write_text(text)
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", f"Text {text}")
    subprocess.run([str(setup)], cwd=root, check=True)
    (root / "store" / "text").write_text("three")
    return root


def test_commit_is_set_up_by_its_own_setup_and_leaves_the_repository_as_it_was(
    root: Path, tmp_path: Path
) -> None:
    before = git(root, "status", "--porcelain"), git(root, "worktree", "list")
    state = commit(root, "HEAD~1", tmp_path / "cache")
    assert state.tree == tmp_path / "cache" / git(root, "rev-parse", "HEAD~1")
    assert (state.tree / "aerobee" / "store" / "text").read_text() == "one"
    assert (state.tree / "aerobee" / "store").is_symlink()
    assert state.what.endswith("(Text one)")
    assert Path(state.interpreter).exists()
    assert (git(root, "status", "--porcelain"), git(root, "worktree", "list")) == before
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [state.tree.name]


def test_commit_set_up_once_is_used_again(root: Path, tmp_path: Path) -> None:
    first = commit(root, "HEAD", tmp_path / "cache")
    (first.tree / "mark").touch()
    again = commit(root, "HEAD", tmp_path / "cache")
    assert again == first
    assert (again.tree / "mark").exists()


def test_working_tree_says_on_what_it_is_and_what_is_changed(root: Path) -> None:
    state = working_tree(root)
    assert state.tree == root
    assert state.what.endswith("(Text two), and 1 changed files")
    git(root, "checkout", "--quiet", "--", ".")
    assert working_tree(root).what.endswith("(Text two), without changes")


@pytest.mark.parametrize(
    ("revision", "words"),
    [("", "say which commit"), ("nothing", "is no commit here"), ("--all", "is no commit here")],
)
def test_what_is_no_commit_is_refused(
    root: Path, tmp_path: Path, revision: str, words: str
) -> None:
    with pytest.raises(CannotMeasure, match=words):
        commit(root, revision, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_commit_without_a_setup_is_refused(root: Path, tmp_path: Path) -> None:
    git(root, "rm", "--quiet", ".ci/setup")
    git(root, "commit", "--quiet", "-m", "No setup")
    with pytest.raises(CannotMeasure, match=r"has no \.ci/setup"):
        commit(root, "HEAD", tmp_path / "cache")


def test_setup_that_fails_is_said_and_done_again(root: Path, tmp_path: Path) -> None:
    (root / ".ci" / "setup").write_text("#!/bin/sh\necho run >>setups\nexit 3\n")
    git(root, "commit", "--quiet", "-am", "Broken setup")
    for count in (1, 2):
        with pytest.raises(CannotMeasure, match="failed"):
            commit(root, "HEAD", tmp_path / "cache")
        (tree,) = (tmp_path / "cache").iterdir()
        assert (tree / "setups").read_text() == "run\n" * count


def test_interpreter_that_runs_other_code_is_refused(root: Path) -> None:
    other = root.parent / "other"
    root.rename(other)
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").write_text(
        f'#!/bin/sh\nPYTHONPATH={other} exec {sys.executable} "$@"\n'
    )
    (root / ".venv" / "bin" / "python").chmod(0o755)
    git(root, "init", "--quiet")
    git(root, "commit", "--quiet", "--allow-empty", "-m", "Empty")
    with pytest.raises(CannotMeasure, match="not that of its tree"):
        working_tree(root)


def test_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match="git status failed"):
        working_tree(tmp_path)
