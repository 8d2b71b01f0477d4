"""A whole daemon in a process of its own that is there in a tenth of a second, and can be killed.

A fresh interpreter needs half a second for its imports, too long for a thousand starts. Here a
server process that has imported everything forks one for each start (`forkserver`): no thread of
the tests is copied. The daemon ends in order when its pipe is closed.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_START_S = 60.0
_CONTEXT = multiprocessing.get_context("forkserver")


def _serve(pipe: Connection, settings: dict[str, Any]) -> None:
    import aerobee.testing

    with aerobee.testing.broker(**settings) as running:
        pipe.send(int(running.broker.rpartition(":")[2]))
        try:
            pipe.recv()
        except EOFError:
            return


class ForkedDaemon:
    """A daemon on `store` from here to `stop` or `kill`; both may be followed by `start`."""

    def __init__(self, store: Path, **settings: Any) -> None:
        self._settings = {**settings, "store_path": str(store)}
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it; raises AssertionError if it does not come up."""
        _CONTEXT.set_forkserver_preload(["aerobee.testing"])
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, self._settings), daemon=True)
        self._process.start()
        theirs.close()
        assert self._pipe.poll(_START_S), "the daemon did not start"
        self.port = self._pipe.recv()

    def stop(self) -> None:
        """Stop it in order."""
        self._pipe.close()
        self._process.join(_START_S)
        assert self._process.exitcode == 0, f"it ended with {self._process.exitcode}"

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.join(_START_S)
        self._pipe.close()
