"""`config/`, where the tables of a running broker are kept: is it still there?

Its files are removed or moved away with it, and nothing else would show that: a table that does not
change is not saved, and a save would make a new directory with one table in it, over which the
directory that was moved away could not be moved back. So no table is saved while it is away. The
broker goes on with the tables in memory, says so, and writes all of them again when it stops, or
when another directory stands in its place: in both cases the disk has nothing of what was saved.

Threads: `check` is called on any, the rest on the loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable

log = logging.getLogger("aerobee.broker.state")

Node = tuple[int, int]


class TableDirectory:
    """The directory at `path`. A store without tables has none until the first is saved."""

    def __init__(self, path: str, check_store: Callable[[], None]) -> None:
        """`check_store` raises OSError where nothing of the store may be written any more."""
        self.path = path
        self._check_store = check_store
        self._known = _node(path)
        self._makes_anew = False
        #: Why no table can be saved here; None while it is there.
        self.problem: str | None = None

    def check(self) -> None:
        """Raises OSError where no table may be written now. Makes the directory for the first."""
        self._check_store()
        if self._known is None:
            # Known from here on: it may be taken away before the next look.
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path)
            self._known = _node(self.path)
        elif not self._makes_anew and _node(self.path) is None:
            raise FileNotFoundError(self._missing())

    def look(self) -> bool:
        """See whether it is there; called each second. True if another one stands in its place:
        then all tables are to be saved again."""
        node, known = _node(self.path), self._known
        if node is None:
            if known is not None and self.problem is None and self._store_is_there():
                self.problem = self._missing()
                log.error("tables cannot be saved why=%s", self.problem)
            return False
        if self.problem is not None:
            self.problem = None
            log.warning("the directory of the tables is there again path=%s", self.path)
        self._known = node
        if known is None or known == node:
            return False
        log.warning("another directory of tables, all are saved again path=%s", self.path)
        return True

    def make_anew(self) -> bool:
        """At the stop: from now on it is made again where it is missing. True if all tables are to
        be saved again."""
        is_other = self.look()
        if _node(self.path) is not None or self._known is None or not self._store_is_there():
            return is_other
        self._makes_anew = True
        log.warning("all tables are written again, their directory is gone path=%s", self.path)
        return True

    def _store_is_there(self) -> bool:
        try:
            self._check_store()
        except OSError:
            return False
        return True

    def _missing(self) -> str:
        return f"{self.path} is not there any more: it was removed or moved away"


def _node(path: str) -> Node | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
