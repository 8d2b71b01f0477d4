"""SIGHUP of a daemon: it asks for the configuration to be read again, or its terminal is gone.

The signal's default action ends the process, so it is taken before anything else is done or
imported: what comes before somebody listens is remembered.

A terminal that is closed sends the same signal. Where the process had one when it started and has
none now, it is to stop: nobody sees it any more, and it would keep its ports. A process that was
started to outlive the terminal (by `nohup`, which has the signal ignored; by `setsid` or systemd,
which give it no terminal) reads its configuration again.

A process that a supervisor of ours keeps (shards/child.py) has no terminal; it ends with its
supervisor.
"""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio  # at run time it would cost every command its import

_STANDARD_INPUT: Final = 0
_TERMINAL: Final = "/dev/tty"
# ENXIO: no controlling terminal. EIO: it was hung up.
_GONE: Final = frozenset({errno.ENXIO, errno.EIO})


class Hangups:
    """The SIGHUPs of this process. On the main thread, as all of Python's signal handling."""

    def __init__(self) -> None:
        self._kept = False
        self._stops = False
        self._came = False
        self._listener: Callable[[], None] | None = None

    def keep(self) -> None:
        """From here on the signal does not end the process. Any number of times."""
        if self._kept:
            return
        self._kept = True
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, self._arrived)
        self._stops = not ignored and _terminal_error() is None

    @contextmanager
    def heard(
        self, call_soon: Callable[..., Any], reload: Callable[[], Any], stop: Callable[[], Any]
    ) -> Iterator[None]:
        """Each signal calls one of the two by `call_soon`; earlier signals count as a single
        signal.

        `call_soon` is an event loop's `call_soon_threadsafe`. Its `add_signal_handler` would give
        the signal its default action when the loop is closed, while the process still has to end
        in order.
        """
        self.keep()

        def listener() -> None:
            gone = self._stops and _terminal_error() in _GONE
            call_soon(stop if gone else reload)

        self._listener = listener
        if self._came:
            listener()
        try:
            yield
        finally:
            self._listener = None

    def _arrived(self, *_: object) -> None:
        if self._listener is None:
            self._came = True
        else:
            self._listener()


def heed_supervisor(loop: "asyncio.AbstractEventLoop", gone: Callable[[], object]) -> None:
    """Have `gone` called when standard input ends: it is a pipe from our supervisor, which the
    kernel closes however that process ends."""

    def readable() -> None:
        if not os.read(_STANDARD_INPUT, 4096):
            loop.remove_reader(_STANDARD_INPUT)
            gone()

    loop.add_reader(_STANDARD_INPUT, readable)


def _terminal_error() -> int | None:
    """Why the controlling terminal cannot be opened; None where it can."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno
    return None


HANGUPS: Final = Hangups()
