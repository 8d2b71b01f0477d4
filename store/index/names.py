"""Names of index files: the local wall time when they were made, to the millisecond.

The order of names is the order of the files. So a name is always above all there are or were: the
clock may have been set back, and a file that was removed may be back after a power cut, and must
not come behind the one that was made in its place.

Threads: the store's caller only.
"""

import re
import time

from aerobee.store.disk.files import Clock

_NAME = re.compile(r"[0-9]{17}", re.ASCII)
_FORMAT = "%Y%m%d%H%M%S"
_HOUR_MS = 3_600_000


def is_index_name(name: str) -> bool:
    """Whether a file of that name is ours."""
    return _NAME.fullmatch(name) is not None


class IndexNames:
    """Gives names; `seen` says which there are, in order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = ""

    def seen(self, name: str) -> None:
        """There is a file of that name."""
        self._last = name

    def next(self) -> str:
        """A name for a new file."""
        self._last = self._following()
        return self._last

    def _following(self) -> str:
        last = self._last
        name = _name_at(self._clock.now_ms())
        if name > last:
            return name
        try:
            last_s = int(time.mktime(time.strptime(last[:14], _FORMAT)))
        except ValueError:  # digits that somebody else chose
            return f"{int(last) + 1:017d}"
        following_ms = last_s * 1000 + int(last[14:]) + 1
        name = _name_at(following_ms)
        # Where the local clock was put back by an hour, names of that hour exist twice.
        return name if name > last else _name_at(following_ms + _HOUR_MS)


def _name_at(time_ms: int) -> str:
    return f"{time.strftime(_FORMAT, time.localtime(time_ms // 1000))}{time_ms % 1000:03d}"
