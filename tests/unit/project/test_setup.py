"""Set-up in a clone anywhere, as much of it as was asked for; lint of the project's files alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# A Python of a .venv as set-up meets it: it notes what pip was to install, and under what limits.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
  *"import aerobee.native"*) [ ! -e unbuilt ]; exit ;;
  *"import sysconfig"*) echo include; echo ./cc ;;
  "-m pip install"*)
    for word in $PIP_CONSTRAINT $PIP_BUILD_CONSTRAINT; do [ -f "$word" ] || exit 9; done
    for last; do :; done
    echo "$last" >>installed
    : >.venv/bin/aerobee && chmod +x .venv/bin/aerobee ;;
  "-m compileall"*)
    for word; do
      case "$word" in "$PWD"/aerobee/*/) basename "$word" >>compiled ;; esac
    done ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that set-up looks at, below a directory with a blank in its name."""
    root = tmp_path / "my clone"
    for name in (".ci/setup", "pyproject.toml", "requirements/dev.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for path in (ROOT / "hatch_build.py", *(ROOT / "native").glob("*.p??")):
        target = root / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    give_compiler(root)
    return root


def give_compiler(root: Path) -> None:
    """Make a compiler that compiles anything."""
    (root / "cc").write_text("#!/bin/sh\ncat >/dev/null\n")
    (root / "cc").chmod(0o755)


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wished by whoever runs the tests."""
    for name in ("AEROBEE_NATIVE", "CC"):
        monkeypatch.delenv(name, raising=False)


def set_up(root: Path, *words: str) -> list[str]:
    """Set up once more; return all that pip was told to install so far."""
    done = subprocess.run(
        [root / ".ci" / "setup", *words], capture_output=True, text=True, cwd="/", timeout=30
    )
    assert done.returncode == 0, done.stderr
    return (root / "installed").read_text().splitlines()


def test_running_installs_what_running_needs_and_tests_the_rest(clone: Path) -> None:
    assert set_up(clone, "run") == ["."]
    assert set_up(clone, "run") == ["."], "nothing has changed"
    assert set_up(clone) == [".", ".[dev]"]
    assert set_up(clone, "run") == [".", ".[dev]"], "all of it is there"
    (clone / "pyproject.toml").write_text("# another state of it")
    assert set_up(clone, "run")[2:] == [".[dev]"], "tools once there stay, and stay right"


def test_a_first_start_finds_its_modules_compiled_even_where_python_writes_no_bytecode(
    clone: Path,
) -> None:
    (clone / "aerobee").mkdir()
    for name in ("cli", "store"):
        (clone / name).mkdir()
        (clone / "aerobee" / name).symlink_to(Path("..") / name)
    set_up(clone, "run")
    assert (clone / "compiled").read_text().split() == ["cli", "store"]


def test_a_word_that_set_up_does_not_know_is_named(clone: Path) -> None:
    done = subprocess.run([clone / ".ci" / "setup", "tset"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "setup: 'tset' is neither 'dev' nor 'run'\n")


def test_a_set_up_without_the_compiled_form_says_so_in_one_line(clone: Path) -> None:
    command = [clone / ".ci" / "setup"]
    (clone / "unbuilt").touch()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if "plain Python will run" in line]
    assert len(lines) == 1
    assert (clone / ".venv" / ".made-from").exists(), "and what is there is used"


def test_the_compiled_form_is_built_once_there_is_a_compiler(clone: Path) -> None:
    (clone / "unbuilt").touch()
    (clone / "cc").unlink()
    assert set_up(clone) == [".[dev]"]
    assert set_up(clone) == [".[dev]"], "without a compiler nothing is tried again"
    give_compiler(clone)
    assert set_up(clone) == [".[dev]"] * 2
    assert set_up(clone) == [".[dev]"] * 2, "a build that fails all the same is not repeated"


def test_off_builds_nothing_and_leaves_what_is_built(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(clone)
    monkeypatch.setenv("AEROBEE_NATIVE", "off")
    assert set_up(clone) == [".[dev]"]
    (clone / ".venv" / ".made-from").unlink()
    assert set_up(clone) == [".[dev]"] * 2
    monkeypatch.setenv("AEROBEE_NATIVE", "auto")
    assert set_up(clone) == [".[dev]"] * 3, "what was left out is wanted now"


@pytest.mark.parametrize(("wish", "says"), [("required", "it needs a C compiler"), ("yes", "auto")])
def test_a_wish_that_cannot_be_met_ends_in_one_line(
    clone: Path, monkeypatch: pytest.MonkeyPatch, wish: str, says: str
) -> None:
    (clone / "cc").unlink()
    monkeypatch.setenv("AEROBEE_NATIVE", wish)
    done = subprocess.run([clone / ".ci" / "setup"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert says in line
    assert not (clone / "installed").exists()


def test_a_changed_source_of_the_compiled_form_is_built(clone: Path) -> None:
    set_up(clone)
    for name in ("native/sends.pyx", "native/bytes.pxd", "hatch_build.py"):
        before = len(set_up(clone))
        (clone / name).write_text("# another state of it")
        assert len(set_up(clone)) == before + 1, name


def test_an_environment_of_another_name_is_its_own(clone: Path) -> None:
    set_up(clone)
    other = clone / ".cache" / "pythons" / "3.99"
    (other / "bin").mkdir(parents=True)
    shutil.copy(clone / ".venv" / "bin" / "python", other / "bin")
    # It writes the command into .venv, which for this one is not there.
    environ = {"PATH": "/usr/bin:/bin", "VENV": ".cache/pythons/3.99"}
    subprocess.run([clone / ".ci" / "setup"], env=environ, check=True, capture_output=True)
    assert (other / ".made-from").exists()


def test_make_run_asks_for_what_running_needs() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0] == ".ci/setup run"
    assert "serve" in done.stdout


def ruff(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ruff", "check", ".", "--no-cache", *words]
    return subprocess.run(argv, cwd=root, capture_output=True, text=True)


def test_a_program_somebody_tries_out_is_not_linted(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "broker").mkdir()
    for name in ("hello.py", "broker/ours.py"):
        (tmp_path / name).write_text("import os\n")
    done = ruff(tmp_path, "--output-format=concise")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[:-2]] == ["broker/ours.py"]


def test_every_module_of_the_project_is_linted() -> None:
    shown = {Path(line) for line in ruff(ROOT, "--show-files").stdout.splitlines()}
    folders = [link for link in (ROOT / "aerobee").iterdir() if link.is_symlink()]
    ours = [path for link in folders for path in link.resolve().rglob("*.py")]
    ours += [*(ROOT / "tests").rglob("*.py"), *ROOT.glob("pyspark_*.py")]
    ours += [*(ROOT / "aerobee").glob("*.py"), *(ROOT / "docs").rglob("*.py")]
    assert set(ours) <= shown
