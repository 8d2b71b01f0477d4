"""Spark finds the sources by itself, from the wheel, whatever modules a user has of his own.

Traps 13, 14, 15 and 17. Modules of a user's own whose names ours have lie first on the path, of the
driver and of its workers; an importer of such a module fails.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.spark.conftest import require
from tests.spark.kit import ROOT, VERSIONS, Driver, python_of
from tests.spark.messages import new_topic, send


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but what the wheel holds."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def test_the_wheel_alone_is_found_beside_a_users_own_modules(
    new_driver: Callable[..., Driver], our_broker: Broker, installed: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in ("config", "client", "store", "protocol", "broker", "pipeline", "remoting"):
        (own / f"{name}.py").write_text("raise RuntimeError('a module of the user was imported')")
    topic = new_topic(our_broker)
    driver = new_driver(path=f"{own}:{installed}")

    def all_formats(spark: Any, options: dict[str, str], store: str) -> tuple[str, int, int]:
        import aerobee

        rows = spark.range(10).selectExpr("cast(id as string) AS body")
        rows.write.format("rocketmq").options(**options).mode("append").save()
        read = spark.read.format("rocketmq").options(**options).load().count()
        stored = spark.read.format("rocketmq-store").option("topic", options["topic"]).load(store)
        return str(aerobee.__file__), read, stored.count()

    options = {"nameServer": our_broker.name_server, "topic": topic}
    place, read, stored = driver.run(all_formats, options=options, store=str(our_broker.store))
    assert place.startswith(str(installed))
    assert (read, stored) == (10, 10)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_finds_both_formats_among_a_users_modules(
    version: str, installed: Path, tmp_path: Path
) -> None:
    """It looks for sources as Spark itself does, without a driver."""
    require(version)
    (tmp_path / "config.py").write_text("raise RuntimeError('a module of the user was imported')")
    program = """
from importlib import import_module
from pkgutil import iter_modules
from pyspark.sql.datasource import DataSource
for info in iter_modules():
    if info.name.startswith("pyspark_"):
        module = import_module(info.name)
        if hasattr(module, "DefaultSource") and issubclass(module.DefaultSource, DataSource):
            print(module.DefaultSource.name())
"""
    found = subprocess.run(
        [str(python_of(version)), "-c", program],
        env={"PYTHONPATH": f"{tmp_path}:{installed}"},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert sorted(found.stdout.split()) == ["rocketmq", "rocketmq-store"]


def test_registering_by_hand_works_too(newest: Driver, our_broker: Broker) -> None:
    def by_hand(spark: Any, options: dict[str, str]) -> int:
        from pyspark_aerobee import DefaultSource

        spark.dataSource.register(DefaultSource)
        return spark.read.format("rocketmq").options(**options).load().count()

    topic = new_topic(our_broker)
    send(our_broker, topic, [b"x"] * 4)
    assert newest.run(by_hand, options={"nameServer": our_broker.name_server, "topic": topic}) == 4


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("module", ["pyspark_aerobee", "pyspark_aerobee_store"])
def test_looking_for_sources_imports_nothing_that_could_fail(version: str, module: str) -> None:
    """One `pyspark_*` module that fails hides all sources (trap 14)."""
    require(version)
    program = f"""
import sys
heavy = ("numpy", "pyarrow", "pandas", "msgspec", "msgpack", "uvloop", "crcmod", "aerobee.client")
for name in heavy:
    sys.modules[name] = None  # importing it fails
import {module}
assert {module}.DefaultSource.name().startswith("rocketmq")
"""
    subprocess.run([str(python_of(version)), "-c", program], cwd=ROOT, check=True)
