"""Somebody who works on a thread within a block, beside what is tested."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Aside(ABC):
    """A context manager. What `work` raises is in `failure`, for whoever judges."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        # Set when the block ends.
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @abstractmethod
    def work(self) -> None:
        """What it does until `_done` is set."""

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - the judge reports it
            self.failure = error
