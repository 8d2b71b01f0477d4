"""Makes the process of `aerobee pipeline shell` and `submit`, with its environment.

Spark starts Python workers with whatever `python3` the PATH has, and looks for formats in the
packages of that one. So both commands name this interpreter, which has Aerobee, for driver and
workers; that is all that a first read needs. On a cluster workers import Aerobee too: they are
sent an archive of its modules, unless it is installed there.

A program in Python, also one on a shell's standard input, and an interactive shell are run by
`inside_spark.py`, so that an error of ours is one line. A declarative pipeline, a file in YAML, is
run by Spark's own program for them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aerobee.pipeline.brokers.broker_options import NAME_SERVERS
from aerobee.pipeline.jobs.common.job_result import USAGE, JobFailed
from aerobee.pipeline.jobs.common.spark_session import NEEDED
from aerobee.pipeline.launch.modules import ARCHIVE, write_modules
from aerobee.pipeline.launch.words import Words, defaults, flat

_HERE: Final = Path(__file__).parent
_SHELL: Final = _HERE / "start_shell.py"
_APPLICATION: Final = _HERE / "run_application.py"
_VERSIONS: Final = ("4.0", "4.1", "4.2", "4.3")
_JAVA: Final = 17
_FOR_PIPELINES: Final = ("grpc", "grpc_status", "google.rpc", "zstandard", "yaml")
_NEEDED_FOR_PIPELINES: Final = (
    "declarative pipelines need Spark Connect and PyYAML: pip install 'pyspark[pipelines]'"
)
#: PYTHONSTARTUP of the user, which the shell runs when it is ready.
USER_STARTUP: Final = "AEROBEE_PYTHONSTARTUP"


@dataclass(frozen=True)
class Launch:
    """The process that the command becomes. `archive` is a file that is of no use when Spark has
    ended; what runs in Spark deletes it, unless `is_remote`: then nothing of ours runs there."""

    argv: list[str]
    environ: dict[str, str]
    archive: Path | None = None
    is_remote: bool = False


def find_spark(environ: Mapping[str, str]) -> Path:
    """The directory of Spark: SPARK_HOME, or that of the package PySpark. Raises JobFailed if there
    is no Spark, it has another version, or something that Spark needs is missing."""
    missing = [name for name in ("numpy", "pandas", "pyarrow") if find_spec(name) is None]
    chosen = environ.get("SPARK_HOME")
    spec = None if chosen else find_spec("pyspark")
    if not chosen and (spec is None or spec.origin is None):
        missing.insert(0, "pyspark")
    if missing:
        raise JobFailed(f"{NEEDED} (missing: {', '.join(missing)})")
    home = Path(chosen) if chosen else Path(str(spec.origin)).parent  # type: ignore[union-attr]
    found = next(iter(home.glob("jars/spark-core_*.jar")), None)
    version = "" if found is None else found.stem.rpartition("-")[2]
    if not version.startswith(tuple(f"{one}." for one in _VERSIONS)):
        what = f"Spark {version}" if version else "no Spark"
        where = f"SPARK_HOME, {home}," if chosen else str(home)
        raise JobFailed(f"{where} has {what}; Aerobee needs {_VERSIONS[0]} to {_VERSIONS[-1]}")
    _check_java(environ)
    return home


def _check_java(environ: Mapping[str, str]) -> None:
    home = environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    needs = f"Spark needs Java {_JAVA} or newer (Debian: apt install openjdk-17-jre-headless)"
    try:
        if java is None:
            raise FileNotFoundError
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        where = f"JAVA_HOME is {home}, which" if home else "the PATH"
        raise JobFailed(f"{needs}; {where} has no Java that runs") from error
    version = re.search(r'version "(\d+)', said)
    if version is not None and int(version[1]) < _JAVA:
        raise JobFailed(f"{needs}; {java} is version {version[1]}")


def build(launch: str, words: Words, given: Mapping[str, str], *, is_terminal: bool) -> Launch:
    """The process for `launch`, shell or submit, from its words and this environment. Raises
    JobFailed."""
    if launch == "submit":
        _check_application(words)
    home = find_spark(given)
    environ = dict(given) | {"SPARK_HOME": str(home)}
    if words.name_servers:
        environ[NAME_SERVERS] = words.name_servers
    settings = defaults(words, home, given)

    def setting(key: str, *names: str) -> str | None:
        return words.value(*names) or words.conf(key) or settings.get(key)

    master = setting("spark.master", "--master")
    is_local = master is None or master.startswith("local")
    is_remote = setting("spark.submit.deployMode", "--deploy-mode") == "cluster"
    options = list(words.spark)
    if not is_remote:
        environ.setdefault("PYSPARK_PYTHON", sys.executable)
        environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if setting("spark.pyspark.driver.python") is None:
            # Else spark.pyspark.python, set for workers, would be the driver's Python, too.
            driver = f"spark.pyspark.driver.python={environ['PYSPARK_DRIVER_PYTHON']}"
            options.append(("--conf", driver))
    archive = None
    if is_local:
        # No other machine connects here, so a host name that does not resolve does no harm.
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if setting("spark.log.level") is None:
            # Spark's warnings are about this machine; its errors come with pages of stack trace,
            # and reach the program as errors of Python, which say the same.
            options.append(("--conf", "spark.log.level=FATAL"))
    elif not words.installed:
        archive = write_modules()
        sent = setting("spark.submit.pyFiles", "--py-files")
        options.append(("--py-files", f"{sent},{archive}" if sent else str(archive)))
        environ[ARCHIVE] = str(archive)
    if launch == "shell":
        return _shell(home, options, environ, archive, is_terminal=is_terminal)
    if is_declarative(words.application):
        return _declarative(home, words, options, environ, archive)
    return _submit(home, words, options, environ, archive, is_remote=is_remote)


def _check_application(words: Words) -> None:
    path = words.application
    if path is None:
        raise JobFailed("names no program: aerobee pipeline submit APP [ARGS]", USAGE)
    if "://" not in path and not Path(path).is_file():
        raise JobFailed(f"there is no file {path}", USAGE)


def _shell(
    home: Path,
    options: list[tuple[str, str | None]],
    environ: dict[str, str],
    archive: Path | None,
    *,
    is_terminal: bool,
) -> Launch:
    """The process is Python itself, which starts Spark's Java process with these arguments."""
    if not is_terminal:
        options = [*options, ("--conf", "spark.ui.showConsoleProgress=false")]
    options = [("--name", "aerobee pipeline shell"), *options]
    environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*flat(options), "pyspark-shell"])
    zips = [str(one) for one in home.glob("python/lib/py4j-*-src.zip")]
    if (home / "python").is_dir():
        # This Spark is not installed as a package of Python.
        paths = [str(home / "python"), *zips, environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if not is_terminal:
        return Launch([sys.executable, str(_APPLICATION)], environ, archive)
    if "PYTHONSTARTUP" in environ:
        environ[USER_STARTUP] = environ["PYTHONSTARTUP"]
    environ["PYTHONSTARTUP"] = str(_SHELL)
    more = shlex.split(environ.get("PYSPARK_DRIVER_PYTHON_OPTS", ""))
    return Launch([environ["PYSPARK_DRIVER_PYTHON"], *more], environ, archive)


def is_declarative(path: str | None) -> bool:
    """Whether `path` is the description of a pipeline, and no program."""
    return path is not None and path.endswith((".yml", ".yaml"))


def _declarative(
    home: Path,
    words: Words,
    options: list[tuple[str, str | None]],
    environ: dict[str, str],
    archive: Path | None,
) -> Launch:
    """The process is Spark's own program; its arguments follow the description."""
    program = home / "bin" / "spark-pipelines"
    if not program.is_file():
        raise JobFailed(f"declarative pipelines need Spark 4.1 or newer; {home} is older")
    missing = [name for name in _FOR_PIPELINES if find_spec(name) is None]
    if missing:
        raise JobFailed(f"{_NEEDED_FOR_PIPELINES} (missing: {', '.join(missing)})")
    verb, more = "run", words.arguments
    if more and not more[0].startswith("-"):
        verb, *more = more
    # The program starts a second Spark, which learns of these settings in no other way.
    if words.value("--remote") is None:
        environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*flat(options), "pyspark-shell"])
    argv = [str(program), verb, "--spec", str(words.application), *more, *flat(options)]
    return Launch(argv, environ, archive, is_remote=True)


def _submit(
    home: Path,
    words: Words,
    options: list[tuple[str, str | None]],
    environ: dict[str, str],
    archive: Path | None,
    *,
    is_remote: bool,
) -> Launch:
    path = words.application
    assert path is not None
    program = [path, *words.arguments]
    is_ours_to_run = path.endswith(".py") and "://" not in path and not is_remote
    if is_ours_to_run:
        program.insert(0, str(_APPLICATION))
        if words.value("--name") is None and words.conf("spark.app.name") is None:
            options = [("--name", Path(path).name), *options]
    argv = [str(home / "bin" / "spark-submit"), *flat(options), *program]
    return Launch(argv, environ, archive, is_remote=not is_ours_to_run)
