"""Imported objects are left out of the collections of Spark's workers, and of nothing else."""

import gc
import importlib.machinery
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest

from aerobee.pipeline import workers


@pytest.fixture(autouse=True)
def thaw(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers, "_prepared", False)
    gc.unfreeze()
    yield
    gc.unfreeze()


def main_of(name: str | None) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__spec__ = None if name is None else importlib.machinery.ModuleSpec(name, None)
    return main


def test_a_worker_collects_only_what_came_after_the_first_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main_of("pyspark.daemon"))
    workers.prepare_worker()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    later = [[number] for number in range(1000)]
    workers.prepare_worker()
    assert gc.get_freeze_count() == frozen
    assert later


def test_a_worker_keeps_what_it_has_freed() -> None:
    """In a process of its own, since it is for the whole of one: a second block has the pages of
    the first, where a fresh one has each of its pages cleared."""
    program = """
import resource, sys, types
import importlib.machinery
main = types.ModuleType("__main__")
main.__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
sys.modules["__main__"] = main
from aerobee.pipeline import workers
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(16 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
before = faults()
workers.prepare_worker()
faults()
print(before, faults())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    assert after < before / 10


@pytest.mark.parametrize("name", [None, "pytest.__main__", "pyspark.worker"])
def test_another_program_keeps_its_collections(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main_of(name))
    workers.prepare_worker()
    assert gc.get_freeze_count() == 0
