"""What is imported is left out of the collections of a worker of Spark's, and of nothing else."""

import gc
import importlib.machinery
import sys
import types
from collections.abc import Iterator

import pytest

from aerobee.pipeline import workers


@pytest.fixture(autouse=True)
def thaw(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers, "_frozen", False)
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
    workers.freeze_imports()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    later = [[number] for number in range(1000)]
    workers.freeze_imports()
    assert gc.get_freeze_count() == frozen
    assert later


@pytest.mark.parametrize("name", [None, "pytest.__main__", "pyspark.worker"])
def test_another_program_keeps_its_collections(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", main_of(name))
    workers.freeze_imports()
    assert gc.get_freeze_count() == 0
