"""Spark finds the sources by itself, from the wheel, whatever modules a user has of his own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import Broker

from .kit import ROOT, VERSIONS, Driver, missing, python_of
from .messages import new_topic, send


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with nothing but what the wheel holds."""
    target = wheel.parent / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def count(spark: Any, options: dict[str, str]) -> int:
    return spark.read.format("rocketmq").options(**options).load().count()


def test_the_wheel_alone_is_found_beside_a_users_own_modules(
    new_driver: Callable[..., Driver], our_broker: Broker, installed: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in ("config", "client", "store", "protocol", "broker", "pipeline", "remoting"):
        (own / f"{name}.py").write_text("raise RuntimeError('a module of the user was imported')")
    topic = new_topic(our_broker)
    send(our_broker, topic, [b"x"] * 10)
    driver = new_driver(path=f"{own}:{installed}")

    def where(spark: Any) -> str:
        import aerobee

        return str(aerobee.__file__)

    assert driver.run(where).startswith(str(installed))
    options = {"nameServer": our_broker.name_server, "topic": topic}
    assert driver.run(count, options=options) == 10


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
    if (lack := missing(version)) is not None:
        pytest.skip(lack)
    program = f"""
import sys
heavy = ("numpy", "pyarrow", "pandas", "msgspec", "msgpack", "uvloop", "crcmod", "aerobee.client")
for name in heavy:
    sys.modules[name] = None  # importing it fails
import {module}
assert {module}.DefaultSource.name().startswith("rocketmq")
"""
    subprocess.run([str(python_of(version)), "-c", program], cwd=ROOT, check=True)
