"""Somebody who works on a thread within a block, beside what is tested."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

_NAP_S = 0.01


class Aside(ABC):
    """A context manager. The error of `work` is in `failure`, for a judge."""

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
        """Work until `_done` is set."""

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - the judge reports it
            self.failure = error


class Lateness(Aside):
    """Measures within its block how late the machine wakes a thread, which then syncs `file`, if a
    file is given."""

    def __init__(self, file: Path | None = None) -> None:
        super().__init__()
        self._file = file
        self.worst_s = 0.0

    def work(self) -> None:
        while not self._done.is_set():
            asleep = time.monotonic()
            time.sleep(_NAP_S)
            if self._file is not None:
                with self._file.open("wb") as file:
                    file.write(b"x")
                    file.flush()
                    os.fsync(file.fileno())
            self.worst_s = max(self.worst_s, time.monotonic() - asleep - _NAP_S)
