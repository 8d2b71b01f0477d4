"""Fixtures of the service tests: daemons that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.service.kit import Served


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts a daemon (further command line arguments, environ=, prefix=, folder=)."""
    started: list[Served] = []

    def start(*arguments: str, folder: str = "daemon", **options: object) -> Served:
        daemon = Served(tmp_path / folder, *arguments, **options)  # type: ignore[arg-type]
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.close()
