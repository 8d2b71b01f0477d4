"""An error of ours is one line to who sees it; all others keep their frames."""

from __future__ import annotations

import importlib.machinery
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.pipeline import workers
from aerobee.pipeline.decode.columns import TOPIC_COLUMNS
from aerobee.pipeline.errors import DataLoss, OptionError, sentence_in
from aerobee.pipeline.foreign_options import missing_column
from aerobee.pipeline.launch.inside_spark import hint
from aerobee.pipeline.launch.one_line import sentence_of

VARIABLE = "SPARK_HIDE_TRACEBACK"
RUN = "from aerobee.pipeline.launch.inside_spark import run_application; run_application()"


def test_a_sentence_of_ours_is_found_in_what_spark_says() -> None:
    said = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Failed: aerobee.pipeline.errors."
        "DataLoss: topic T: gone\n SQLSTATE: 38000\n=== Streaming Query ==="
    )
    assert sentence_in(said) == "topic T: gone"
    frames = (
        "Traceback (most recent call last):\naerobee.pipeline.errors.Unreachable: first\n\n"
        "The above exception was the direct cause\naerobee.pipeline.sink.rows.SinkRowError: last\n"
    )
    assert sentence_in(frames) == "last"
    assert sentence_in("KeyError: 'x'") is None
    assert sentence_in("my.aerobee.pipelines.Error: x") is None
    assert sentence_of(OptionError("wrong")) == "wrong"
    assert sentence_of(ValueError("aerobee.pipeline.errors.OptionError: told")) == "told"
    assert sentence_of(KeyError("x")) is None


@workers.plain_errors
class Reader:
    """Called as Spark calls a reader."""

    def partitions(self) -> list[int]:
        """A list of partitions."""
        raise DataLoss("gone")

    def read(self, fails: Exception | None) -> Iterator[int]:
        yield 1
        if fails is not None:
            raise fails

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:
        return {"start": 1}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    main = types.ModuleType("__main__")
    main.__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    yield
    os.environ.pop(VARIABLE, None)


@pytest.mark.usefixtures("worker")
def test_a_worker_hides_the_frames_of_our_errors_alone() -> None:
    assert list(Reader().read(None)) == [1]
    with pytest.raises(KeyError):
        list(Reader().read(KeyError("a bug")))
    assert VARIABLE not in os.environ
    with pytest.raises(DataLoss):
        Reader().partitions()
    assert os.environ.pop(VARIABLE) == "1"
    with pytest.raises(OptionError):
        list(Reader().read(OptionError("wrong")))
    assert os.environ[VARIABLE] == "1"


def test_elsewhere_no_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataLoss):
        Reader().partitions()
    assert VARIABLE not in os.environ


def test_spark_sees_the_method_behind_it() -> None:
    import inspect

    assert list(inspect.signature(Reader().latestOffset).parameters) == ["start", "limit"]
    assert Reader.partitions.__doc__ == "A list of partitions."


def ran(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "app.py"
    path.write_text(program)
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    command = [sys.executable, "-c", RUN, str(path), "a", "--b"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_program_runs_as_python_runs_it(tmp_path: Path) -> None:
    program = """
import sys, beside, pickle
class Mine: pass
print(__name__, __file__ == sys.argv[0], sys.argv[1:], beside.VALUE, Mine.__module__)
print(type(pickle.loads(pickle.dumps(Mine()))) is Mine, sorted(n for n in vars() if n[0] != "_"))
sys.exit(7)
"""
    done = ran(tmp_path, program)
    assert done.returncode == 7, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "__main__ True ['a', '--b'] 5 __main__"
    assert lines[1] == "True ['Mine', 'beside', 'pickle', 'sys']"


def test_an_error_of_ours_ends_a_program_in_one_line(tmp_path: Path) -> None:
    program = "from aerobee.pipeline.errors import OptionError\n\n\nraise OptionError('is wrong')\n"
    done = ran(tmp_path, program)
    assert done.returncode == 1
    assert done.stderr == f"aerobee: is wrong ({tmp_path}/app.py, line 4)\n"


def test_another_error_keeps_the_frames_of_the_program(tmp_path: Path) -> None:
    done = ran(tmp_path, "def f():\n    return {}['x']\n\nf()\n")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[1] == f'  File "{tmp_path}/app.py", line 4, in <module>'
    assert lines[-1] == "KeyError: 'x'"
    assert "launch" not in done.stderr


def test_the_hint_of_a_shell_can_be_copied() -> None:
    for text in (hint(None), hint("a:1")):
        program = [line.strip() for line in text.splitlines() if line.startswith("  ")]
        compile("\n".join(program), "hint", "exec")
        assert 'format("rocketmq")' in program[0]
        shown = re.findall(r'"(?:string\()?(\w+)\)?"', program[1])
        assert len(shown) == 4
        assert {*shown} <= {column.name for column in TOPIC_COLUMNS if column.standard}
    assert '.option("nameServer", "127.0.0.1:9876")' in hint(None)
    assert "nameServer" not in hint("a:1")


UNRESOLVED = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `{}` "
    "cannot be resolved. Did you mean one of the following? [`topic`, `body`]. SQLSTATE: 42703;\n"
    "'Project ['{}]\n+- RelationV2[topic#0, body#1] rocketmq\n"
)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("value", " A topic's column is body."),
        ("tags", " A topic has it when option columns names it (columns=* takes all)."),
        ("topik", ""),
    ],
)
def test_a_column_that_is_not_there_is_one_sentence(name: str, said: str) -> None:
    found = missing_column(UNRESOLVED.format(name, name))
    assert found == (
        f"A column, variable, or function parameter with name `{name}` cannot be resolved. "
        f"Did you mean one of the following? [`topic`, `body`].{said}"
    )
    assert missing_column("[TABLE_OR_VIEW_NOT_FOUND] The table `value` ...") is None
