"""The command that runs for a shell or a program, and its environment."""

from __future__ import annotations

import shlex
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.cli.main import main
from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.launch import command
from aerobee.pipeline.launch.command import Launch, build
from aerobee.pipeline.launch.modules import ARCHIVE, delete
from aerobee.pipeline.launch.words import split

DRIVER = f"--conf spark.pyspark.driver.python={sys.executable}"
QUIET = "--conf spark.log.level=FATAL"
Given = dict[str, str]


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """The environment of a machine with Spark and Java, as far as the command looks at them."""
    home, java = tmp_path / "spark", tmp_path / "java"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.13-4.2.1.jar").touch()
    (java / "bin").mkdir(parents=True)
    set_java(java, "17.0.15")
    monkeypatch.setattr(command, "find_spec", lambda name: name)
    return {"SPARK_HOME": str(home), "JAVA_HOME": str(java), "PATH": "/none"}


def set_java(home: Path, version: str) -> None:
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    program.chmod(0o755)


@pytest.fixture
def app(tmp_path: Path) -> str:
    path = tmp_path / "orders.py"
    path.write_text("print(1)\n")
    return str(path)


@pytest.fixture
def launch(spark: Given) -> Callable[..., Launch]:
    def get(name: str, *words: str, terminal: bool = False, **more: str) -> Launch:
        return build(name, split(words, name), spark | more, is_terminal=terminal)

    return get


def test_a_program_runs_with_this_python_as_its_workers(
    launch: Callable[..., Launch], spark: Given, app: str
) -> None:
    found = launch("submit", "-n", "a:1", "--driver-memory", "2g", app, "x", "--conf")
    runner = str(Path(command.__file__).with_name("run_application.py"))
    submit = f"{spark['SPARK_HOME']}/bin/spark-submit"
    options = shlex.split(f"--name orders.py --driver-memory 2g {DRIVER} {QUIET}")
    assert found.argv == [submit, *options, runner, app, "x", "--conf"]
    assert found.environ["PYSPARK_PYTHON"] == sys.executable
    assert found.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert found.environ["NAMESRV_ADDR"] == "a:1"
    assert found.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert found.archive is None


def test_what_the_user_set_stays(launch: Callable[..., Launch], app: str) -> None:
    chosen = {"PYSPARK_PYTHON": "/other", "PYSPARK_DRIVER_PYTHON": "/its", "SPARK_LOCAL_IP": "::1"}
    found = launch("submit", "--conf", "spark.log.level=INFO", "--name", "mine", app, **chosen)
    assert {name: found.environ[name] for name in chosen} == chosen
    assert found.argv[1:5] == ["--conf", "spark.log.level=INFO", "--name", "mine"]
    assert found.argv[5:7] == ["--conf", "spark.pyspark.driver.python=/its"]
    assert "spark.log.level=FATAL" not in found.argv


def test_a_cluster_is_sent_the_modules(launch: Callable[..., Launch], app: str) -> None:
    found = launch("submit", "--py-files", "a.zip", "--master", "spark://m:7077", app)
    archive = found.archive
    assert archive is not None
    assert found.argv[-4:-2] == ["--py-files", f"a.zip,{archive}"]
    assert found.environ[ARCHIVE] == str(archive)
    assert "SPARK_LOCAL_IP" not in found.environ
    assert "spark.log.level=FATAL" not in found.argv
    names = zipfile.ZipFile(archive).namelist()
    assert {"pyspark_aerobee.py", "pyspark_aerobee_store.py", "aerobee/__init__.py"} <= {*names}
    assert "aerobee/pipeline/source/topic_source.py" in names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    delete(archive)
    assert not archive.parent.exists()
    assert launch("submit", "--installed", "--master", "spark://m:7077", app).archive is None


def test_a_master_may_stand_in_a_file_of_settings(
    launch: Callable[..., Launch], spark: Given, app: str
) -> None:
    conf = Path(spark["SPARK_HOME"]) / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.master yarn\n")
    found = launch("submit", app)
    assert found.archive is not None
    delete(found.archive)
    assert launch("submit", "--master", "local[2]", app).archive is None


@pytest.mark.parametrize(
    ("options", "program"),
    [
        (["--deploy-mode", "cluster", "--master", "yarn", "--installed"], None),
        (["--class", "Main"], "app.jar"),
        ([], "hdfs:///apps/orders.py"),
    ],
)
def test_what_does_not_run_here_in_python_is_spark_submits_own(
    launch: Callable[..., Launch],
    app: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    program: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.jar").touch()
    found = launch("submit", *options, program or app, "x")
    assert found.argv[-2:] == [program or app, "x"]
    assert not [one for one in found.argv if one.endswith("run_application.py")]
    assert found.is_remote
    # A driver elsewhere has its own Python.
    assert ("PYSPARK_PYTHON" in found.environ) is ("cluster" not in options)


def test_a_shell_is_python_that_starts_with_ours_and_then_the_users(
    launch: Callable[..., Launch],
) -> None:
    found = launch("shell", "--driver-memory", "2g", terminal=True, PYTHONSTARTUP="/mine.py")
    assert found.argv == [sys.executable]
    words = shlex.split(f"--name 'aerobee pipeline shell' --driver-memory 2g {DRIVER} {QUIET}")
    assert shlex.split(found.environ["PYSPARK_SUBMIT_ARGS"]) == [*words, "pyspark-shell"]
    assert found.environ["PYTHONSTARTUP"].endswith("launch/start_shell.py")
    assert found.environ[command.USER_STARTUP] == "/mine.py"
    jupyter = {"PYSPARK_DRIVER_PYTHON": "jupyter", "PYSPARK_DRIVER_PYTHON_OPTS": "lab --no-browser"}
    assert launch("shell", terminal=True, **jupyter).argv == ["jupyter", "lab", "--no-browser"]


def test_a_shell_without_a_terminal_runs_what_it_is_given(launch: Callable[..., Launch]) -> None:
    found = launch("shell", PYTHONSTARTUP="/mine.py")
    assert found.argv[0] == sys.executable
    assert found.argv[1].endswith("launch/run_application.py")
    assert found.environ["PYTHONSTARTUP"] == "/mine.py"


def test_a_spark_that_is_no_package_brings_its_own_pyspark(
    launch: Callable[..., Launch], spark: Given
) -> None:
    library = Path(spark["SPARK_HOME"]) / "python" / "lib"
    library.mkdir(parents=True)
    (library / "py4j-0.10.9.9-src.zip").touch()
    found = launch("shell", PYTHONPATH="/mine")
    wanted = [str(library.parent), str(library / "py4j-0.10.9.9-src.zip"), "/mine"]
    assert found.environ["PYTHONPATH"].split(":") == wanted


def test_a_description_of_a_pipeline_is_run_by_sparks_program_for_them(
    launch: Callable[..., Launch], spark: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    description, settings = tmp_path / "spark-pipeline.yml", tmp_path / "spark.properties"
    description.touch()
    settings.write_text("spark.log.level ERROR\nspark.x y=z\n")
    words = ["--properties-file", str(settings), "--conf", "spark.x=w", str(description)]
    with pytest.raises(JobFailed, match=r"need Spark 4\.1 or newer"):
        launch("submit", *words)
    program = Path(spark["SPARK_HOME"]) / "bin" / "spark-pipelines"
    program.parent.mkdir()
    program.touch()
    found = launch("submit", *words, "--full-refresh-all")
    named = [*words[:-1], *shlex.split(DRIVER)]
    wanted = [str(program), "run", "--spec", str(description), "--full-refresh-all", *named]
    assert found.argv == wanted
    assert shlex.split(found.environ["PYSPARK_SUBMIT_ARGS"]) == [*named, "pyspark-shell"]
    assert found.environ["PYSPARK_PYTHON"] == sys.executable
    assert launch("submit", *words, "dry-run").argv[1:3] == ["dry-run", "--spec"]
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "grpc" else name)
    with pytest.raises(JobFailed, match=r"pip install 'pyspark\[pipelines\]' \(missing: grpc\)"):
        launch("submit", *words)


def test_what_is_missing_is_said_in_one_line(
    launch: Callable[..., Launch],
    spark: Given,
    app: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    java = Path(spark["JAVA_HOME"])
    set_java(java, "11.0.2")
    with pytest.raises(JobFailed, match=r"needs Java 17 or newer .*; .*java is version 11"):
        launch("shell")
    with pytest.raises(JobFailed, match="JAVA_HOME is /nowhere, which has no Java that runs"):
        launch("shell", JAVA_HOME="/nowhere")
    set_java(java, "21")
    jar = next(Path(spark["SPARK_HOME"]).glob("jars/*"))
    jar.rename(jar.with_name("spark-core_2.12-3.5.1.jar"))
    with pytest.raises(JobFailed, match=r"SPARK_HOME, .*, has Spark 3\.5\.1; .* 4\.0 to 4\.3"):
        launch("shell")
    with pytest.raises(JobFailed, match=f"there is no file {tmp_path}/nothing.py") as refused:
        launch("submit", f"{tmp_path}/nothing.py")
    assert refused.value.code == 2
    with pytest.raises(JobFailed, match="names no program"):
        launch("submit")
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(JobFailed, match=r"pip install '\.\[spark\]'.*: numpy, pandas, pyarrow"):
        launch("submit", app)
    with pytest.raises(JobFailed, match="missing: pyspark, numpy"):
        build("submit", split([app], "submit"), {}, is_terminal=False)


def test_the_command_becomes_what_is_to_run(
    spark: Given, app: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: list[list[str]] = []

    def become(program: str, argv: list[str], environ: Given) -> None:
        became.append([program, *argv])
        raise SystemExit(0)

    monkeypatch.setattr("os.execvpe", become)
    for name, value in spark.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(["pipeline", "submit", app])
    assert became[0][0] == became[0][1] == f"{spark['SPARK_HOME']}/bin/spark-submit"
    assert main(["pipeline", "submit", "/nothing.py"]) == 2
    said = capsys.readouterr().err
    assert said == "aerobee: pipeline submit: there is no file /nothing.py\n"
