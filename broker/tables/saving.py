"""Writes a table that changes on the loop to its file on a worker thread, again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("aerobee.broker.state")


class Savable(Protocol):
    """A table with a file."""

    def take_changes(self) -> str | None: ...
    def save(self, text: str) -> None: ...
    def mark_unsaved(self) -> None: ...


def saver(loop: asyncio.AbstractEventLoop, what: str, table: Savable) -> Callable[[], None]:
    """A duty that saves the table if it has changed; what fails is logged and tried next time."""

    def run() -> None:
        text = table.take_changes()
        if text is not None:
            loop.run_in_executor(None, table.save, text).add_done_callback(ended)

    def ended(saved: asyncio.Future[None]) -> None:
        if not saved.cancelled() and (error := saved.exception()) is not None:
            log.error("%s not saved, will be tried again why=%s", what, error)
            table.mark_unsaved()

    return run
