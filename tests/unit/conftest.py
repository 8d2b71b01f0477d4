"""Fixtures of all unit tests: the mark `both_loops` (asyncio's own loop and uvloop), a free
port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests import ports

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_loops: run on asyncio's loop and on uvloop")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    factories: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if item.get_closest_marker("both_loops"):
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture
def free_port() -> int:
    """A port nobody listens on at this moment."""
    return ports.free_port()
