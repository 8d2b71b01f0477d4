"""Remembers the refusals of the last hour: by cause, codes and peer, in counts by minute.

The metric `aerobee_refused_requests_total` says that requests are refused. An administrator then
asks for which reason, and whose requests these are; a label cannot say that, for peers and texts
are no labels. Only refusals are counted here, so a request that succeeds costs nothing.

A cause is the remark of the answer, cut, with its numbers made alike: "the limit is N". Bounded:
`MOST_KINDS` kinds, of which the texts are cut; while all have refusals within the hour, those of
further kinds are counted together. Loop thread only.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from aerobee.broker.broker_stats import is_refusal

#: Kinds that are remembered at a time, some 2 KiB each.
MOST_KINDS: Final = 1_000
_MINUTES: Final = 60
_MINUTE_S: Final = 60.0
_TEXT_CHARS: Final = 200
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class Refused(NamedTuple):
    """The refusals of one kind within the last hour. `text` is the remark of the last of them;
    `host` is "" and `request_code` 0 where several kinds are counted together."""

    text: str
    response_code: int
    request_code: int
    host: str
    times: int
    last_s: float


_Kind = tuple[str, int, int, str]
_OTHERS: Final[_Kind] = ("", 0, 0, "")
_OTHERS_TEXT: Final = "further causes and peers, more than are remembered one by one"


class _Counts:
    """How many refusals there were in each of the last sixty minutes."""

    __slots__ = ("_minutes", "_newest", "last_s", "text")

    def __init__(self, minute: int) -> None:
        self._minutes = array("L", bytes(_MINUTES * array("L").itemsize))
        self._newest = minute
        self.text = ""
        self.last_s = 0.0

    def add(self, minute: int) -> None:
        self._go_on(minute)
        self._minutes[minute % _MINUTES] += 1

    def total(self, minute: int) -> int:
        self._go_on(minute)
        return sum(self._minutes)

    def _go_on(self, minute: int) -> None:
        for passed in range(self._newest + 1, min(minute, self._newest + _MINUTES) + 1):
            self._minutes[passed % _MINUTES] = 0
        self._newest = max(self._newest, minute)


class Refusals:
    """The refusals of the last hour. `clock` is monotonic, `wall_clock` that of the epoch, both in
    seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        most_kinds: int = MOST_KINDS,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._most_kinds = most_kinds
        self._kinds: dict[_Kind, _Counts] = {}
        self._looked_at = -1

    def add(self, host: str, request_code: int, response_code: int, remark: str) -> None:
        """Count an answer, if it is a refusal."""
        if not is_refusal(request_code, response_code):
            return
        text = remark[:_TEXT_CHARS]
        minute = self._minute()
        kind = (_NUMBER.sub("N", text), response_code, request_code, host)
        counts = self._kinds.get(kind)
        if counts is None:
            if len(self._kinds) >= self._most_kinds:
                self._forget_old(minute)
            if len(self._kinds) >= self._most_kinds:
                kind, text = _OTHERS, _OTHERS_TEXT
            counts = self._kinds.setdefault(kind, _Counts(minute))
        counts.add(minute)
        counts.text, counts.last_s = text, self._wall_clock()

    def last_hour(self) -> list[Refused]:
        """All of them, the most frequent first."""
        minute = self._minute()
        found = [
            Refused(counts.text, *kind[1:], times, counts.last_s)
            for kind, counts in self._kinds.items()
            if (times := counts.total(minute))
        ]
        return sorted(found, key=lambda one: (-one.times, one))

    def _minute(self) -> int:
        return int(self._clock() // _MINUTE_S)

    def _forget_old(self, minute: int) -> None:
        """Forget the kinds that had none within the hour; once a minute, for it looks at all."""
        if minute == self._looked_at:
            return
        self._looked_at = minute
        for kind in [one for one, counts in self._kinds.items() if not counts.total(minute)]:
            del self._kinds[kind]
