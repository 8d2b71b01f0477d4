"""`aerobee pipeline shell` and `submit` as a newcomer starts them: no environment is activated, no
variable is set, and the PATH has another python3.

Once as the working tree is installed in `.venv`, once from the wheel.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interop.brokers import Broker
from tests.spark.conftest import require
from tests.spark.kit import ROOT, VERSIONS, python_of, quick_java
from tests.spark.messages import new_topic, send

SCRIPT = "import sys\nfrom aerobee.cli.main import main\nsys.exit(main())\n"
PROGRAM = """\
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.getOrCreate()


def doubled(text):
    return text * 2


rows = spark.read.format("rocketmq").option("topic", sys.argv[1]).load()
print([row[0] for row in rows.select(udf(doubled)(rows.body.cast("string"))).collect()])
spark.read.format("rocketmq").option("topic", sys.argv[1]).option("topik", "x").load()
"""
GIVEN = """\
rows = spark.read.format("rocketmq").option("topic", "TOPIC").load()
for row in rows.selectExpr("string(body) AS text").collect():
    print(row.text)
if spark.conf.get("spark.app.name"):
    query = (
        spark.readStream.format("rocketmq").option("topic", "no-such-topic").load()
        .writeStream.format("noop").option("checkpointLocation", "CHECKPOINT").start()
    )
    query.awaitTermination()
print("not reached")
"""


def installed(folder: Path, version: str, wheel: Path | None = None) -> Path:
    """The command `aerobee` in a new environment that has that version of PySpark."""
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    site = next(venv.glob("lib/python3*/site-packages"))
    packages = next(python_of(version).parent.parent.glob("lib/python3*/site-packages"))
    (site / "pyspark.pth").write_text(f"{packages}\n")
    command = venv / "bin" / "aerobee"
    if wheel is None:
        (site / "_aerobee.pth").write_text(f"{ROOT}\n")
        command.write_text(f"#!{python}\n{SCRIPT}")
        command.chmod(0o755)
    else:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        done = [*pip, "--python", str(python), "install", "--no-deps", str(wheel)]
        subprocess.run(done, check=True)
    return command


def environ(version: str, folder: Path) -> dict[str, str]:
    """Nothing but where the system's commands are, and what has Java start sooner."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "TERM": "dumb",
        "JDK_JAVA_OPTIONS": quick_java(version),
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shell_runs_what_it_is_given_from_a_checkout(
    version: str, our_broker: Broker, tmp_path: Path
) -> None:
    require(version)
    topic = new_topic(our_broker)
    send(our_broker, topic, [b"one", b"two"])
    given = GIVEN.replace("TOPIC", topic).replace("CHECKPOINT", str(tmp_path / "checkpoint"))
    done = subprocess.run(
        [installed(tmp_path, version), "pipeline", "shell", "-n", our_broker.name_server],
        input=given, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False,
        env=environ(version, tmp_path),
    )  # fmt: skip
    assert done.stdout.split() == ["one", "two"], done.stderr
    assert done.returncode == 1
    # One line, of the line that waited; what is before it Java and Spark say when they start.
    *before, last = done.stderr.splitlines()
    assert re.fullmatch(r"aerobee: .*'no-such-topic'.* \(<stdin>, line 9\)", last)
    assert not [line for line in before if "aerobee" in line or "Traceback" in line]


def test_a_program_is_submitted_from_the_wheel(
    our_broker: Broker, wheel: Path, tmp_path: Path
) -> None:
    require(VERSIONS[0])
    topic = new_topic(our_broker)
    send(our_broker, topic, [b"one", b"two"])
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [installed(tmp_path, VERSIONS[0], wheel), "pipeline", "submit"]
    done = subprocess.run(
        [*command, "-n", our_broker.name_server, "--master", "local[2]", path, topic],
        capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False,
        env=environ(VERSIONS[0], tmp_path),
    )  # fmt: skip
    # spark-submit sends both outputs of the program to its standard output.
    assert done.stdout.splitlines() == [
        "['oneone', 'twotwo']",
        f"aerobee: unknown option 'topik'; did you mean 'topic'? ({path}, line 14)",
    ], done.stderr
    assert done.returncode == 1


@pytest.mark.campaign
def test_a_shell_at_a_terminal_greets_reads_and_says_errors_in_one_line(
    our_broker: Broker, tmp_path: Path
) -> None:
    version = VERSIONS[0]
    require(version)
    topic = new_topic(our_broker)
    send(our_broker, topic, [b"one", b"two"])
    command = str(installed(tmp_path, version))
    pid, terminal = pty.fork()
    if pid == 0:
        words = [command, "pipeline", "shell", "-n", our_broker.name_server]
        os.execve(command, words, environ(version, tmp_path))
    try:
        greeting = until_prompt(terminal)
        assert f"A topic of {our_broker.name_server} is a DataFrame" in greeting
        read = f'spark.read.format("rocketmq").option("topic", "{topic}")'
        os.write(terminal, f"{read}.load().count()\n".encode())
        assert until_prompt(terminal).split()[-2] == "2"
        os.write(terminal, f'{read}.option("topik", "x").load()\n'.encode())
        said = until_prompt(terminal)
        # The typed text is there too, as far as the terminal is wide.
        assert said.splitlines()[1:-1][-1:] == [
            "aerobee: unknown option 'topik'; did you mean 'topic'?"
        ]
        assert "Traceback" not in said
        os.write(terminal, b"\x04")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def until_prompt(terminal: int) -> str:
    """The shell's output until it asks for more."""
    found = b""
    deadline = time.monotonic() + 200
    while not found.rstrip(b" ").endswith(b">>>"):
        assert time.monotonic() < deadline, found
        if select.select([terminal], [], [], 1)[0]:
            found += os.read(terminal, 65536)
    return found.decode()
