"""Fixtures of the crash tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.tools import need


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, for disks and images."""
    with memory_folder() as made:
        yield made


@pytest.fixture(scope="session")
def recorded_disks() -> None:
    """Needs of the recorder on the machine."""
    need("mount", "fuse", "loop", "mkfs.ext4")
