"""The accounts of a running broker or name server: read at its start, read again when a file
changes.

Files are read and written on one thread of its own, one thing after the other, and what changes is
found there; it pauses all the time, so that the loop gets the interpreter when it wants it. Rules
are put in force on the loop, whole, by one assignment, and those before are let go on the thread,
some at a time. What cannot be read leaves the rules before in force, is logged once, and is told by
`problem` until it is mended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from aerobee.access.accounts import Account, Rules
from aerobee.access.control import AccessControl
from aerobee.access.errors import AccountFileError
from aerobee.access.files.account_files import AccountFiles, Loaded, Stamp, differences
from aerobee.access.pauses import Pauses
from aerobee.file_replacement import replace_file

log = logging.getLogger("aerobee.access")

# The lines of a difference that are logged singly.
_MOST_LINES: Final = 100
# Accounts that are freed in one step, a microsecond each.
_FREED_AT_ONCE: Final = 100
# Each line is logged: an operator has to know every right that changed.
_EACH: Final = {"each": True}


class _Changed(NamedTuple):
    """The files that were read, the rules that they make here, the first lines of the difference,
    and the number of its lines."""

    loaded: Loaded
    rules: Rules
    lines: list[str]
    total: int


def _lines(before: Rules, after: Rules, pauses: Pauses) -> tuple[list[str], int]:
    lines = differences(before, after, pauses)
    first = list(islice(lines, _MOST_LINES))
    return first, len(first) + sum(1 for _ in lines)


def _let_go(last: list[Loaded]) -> None:
    """Free rules that nobody has any more: in one stretch it would hold the interpreter."""
    accounts = [account for file in last[0].files for account in file.accounts]
    last.clear()
    pauses = Pauses()
    while accounts:
        del accounts[-_FREED_AT_ONCE:]
        pauses.take()


class AccessService:
    """Keeps the rules of one server. Loop thread only."""

    #: Files are looked at this often.
    LOOK_S: Final = 1.0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        home: str,
        named: str,
        make: Callable[[Rules], AccessControl],
        *,
        always: tuple[Account, ...] = (),
        server: str = "broker",
    ) -> None:
        """`home` and `named` as `AccountFiles`; `make` makes what is asked; `always` are accounts
        beside those of the files; `server` is whose they are, for the log. Raises
        AccountFileError when no rules can be had."""
        self._server = server
        self.files = AccountFiles(home, named)
        self._always = always
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aerobee-accounts")
        self._looking: asyncio.Future[None] | None = None
        self._is_closed = False
        try:
            loaded = self.files.load()
        except AccountFileError as error:
            raise AccountFileError(f"{error} (aerobee acl check FILE looks at one)") from None
        self.control = make(self._rules(loaded))
        #: Why the files as they are now are not in force; None when they are.
        self.problem: str | None = None
        self.loaded = loaded
        self._seen: Stamp = loaded.stamp
        self._warn(loaded)
        # The files as the thread has read them last: the next are compared with them.
        self._given = loaded

    def look(self) -> None:
        """Read the files if they have changed; as the scheduler calls it."""
        self.control.report_unlogged()
        if not self._is_closed and (self._looking is None or self._looking.done()):
            self._looking = self._loop.run_in_executor(self._thread, self._look, False)

    def read_again(self) -> asyncio.Future[None]:
        """Read the files, changed or not."""
        return self._loop.run_in_executor(self._thread, self._look, True)

    def change(self, path: Path, change: Callable[[Loaded], object]) -> asyncio.Future[None]:
        """Change the file at `path`, which `change` does on the thread, given what all files say
        then, and put the new rules in force before the future is done. It raises what `change`
        raises, and AccountFileError for rules that could not be in force; the file is as before
        then."""
        return self._loop.run_in_executor(self._thread, self._change, path, change)

    async def close(self) -> None:
        """Waits for what is being read or written; `look` does nothing from now on."""
        self._is_closed = True
        end = partial(self._thread.shutdown, cancel_futures=True)
        await self._loop.run_in_executor(None, end)

    # --- on the thread

    def _look(self, always: bool) -> None:
        stamp = self.files.stamp()
        if stamp == self._seen and not always:
            return
        self._seen = stamp
        try:
            loaded = self.files.load(Pauses())
        except AccountFileError as error:
            self._loop.call_soon_threadsafe(self._keep, str(error))
            return
        self._take_on_loop(loaded)

    def _change(self, path: Path, change: Callable[[Loaded], object]) -> None:
        # While another file is wrong nothing is changed: it could not be put in force.
        found = self.files.load(Pauses())
        path = path.resolve()
        before = path.read_bytes() if path.exists() else None
        change(found)
        try:
            loaded = self.files.load(Pauses())
        except AccountFileError:
            if before is None:
                path.unlink(missing_ok=True)
            else:
                replace_file(path, before, keep_mode=True)
            raise
        self._seen = loaded.stamp
        self._take_on_loop(loaded)

    def _take_on_loop(self, loaded: Loaded) -> None:
        changed = _Changed(
            loaded, self._rules(loaded), *_lines(self._given.rules, loaded.rules, Pauses())
        )
        self._given = loaded
        # Before the future of this call is done: that comes behind, by the same way.
        self._loop.call_soon_threadsafe(self._take, changed)

    # --- on the loop

    def _take(self, changed: _Changed) -> None:
        loaded, rules, lines, total = changed
        before, self.loaded = [self.loaded], loaded
        if self.problem is not None:
            self.problem = None
            log.info("accounts are taken again server=%s", self._server, extra=_EACH)
        if lines:
            self.control.put_in_force(rules)
            log.info("accounts changed lines=%d server=%s", total, self._server, extra=_EACH)
            for line in lines:
                log.info("accounts %s server=%s", line, self._server, extra=_EACH)
        self._warn(loaded)
        if not self._is_closed:
            self._loop.run_in_executor(self._thread, _let_go, before)

    def _rules(self, loaded: Loaded) -> Rules:
        return loaded.rules.beside(self._always) if self._always else loaded.rules

    def _keep(self, problem: str) -> None:
        self.problem = problem
        text = 'accounts stay as they were, the files cannot be taken reason="%s" server=%s'
        log.error(text, problem, self._server)

    def _warn(self, loaded: Loaded) -> None:
        for warning in loaded.warnings[:_MOST_LINES]:
            log.warning("accounts %s", warning)
