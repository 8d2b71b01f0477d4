"""Chooses whose handshake may begin: a limited number is under way, and addresses take turns.

OpenSSL keeps some 50 KiB of a handshake, for as long as its peer likes, so their number has a
limit. A peer that finds all places taken gets the place of an address that has more places than its
own, at once; else the place of the longest handshake, once that had its time. The newest hello of
an address begins first: in a crowd that nobody could serve whole, its peer has not given up. So a
single address, however many hellos it sends, holds nobody else up, and each address has its turn.

It knows no sockets and no clock. Loop thread only.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# The search for an address that has fewer places looks at this number of waiting addresses.
_LOOKED_AT: Final = 64


class Handshakes(Generic[T]):
    """Those who wait to begin, by address, and those under way."""

    def __init__(self, most: int, sure_s: float) -> None:
        """`most` are under way; each is sure of `sure_s` seconds, but for those of an address that
        has more than another one wants."""
        self._most = most
        self._sure_s = sure_s
        # The next address to take its turn first; of one the newest last.
        self._waiting: dict[str, dict[T, None]] = {}
        # The longest first, with the time at which it began, and its address.
        self._under_way: dict[T, tuple[float, str]] = {}
        self._of: Counter[str] = Counter()

    @property
    def waits(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def wait(self, one: T, host: str) -> None:
        """`one` of this address wants to begin."""
        self._waiting.setdefault(host, {})[one] = None

    def forget(self, one: T, host: str) -> bool:
        """It is done, or gone. Whether that has made room."""
        self._take_out(one, host)
        if self._under_way.pop(one, None) is None:
            return False
        self._of[host] -= 1
        if not self._of[host]:
            del self._of[host]
        return True

    def next(self, now: float) -> tuple[T, T | None] | None:
        """The handshake that may begin now, and the handshake that has to end for it; None while
        none may begin. The caller then calls `begin` or `forget`."""
        if not self._waiting:
            return None
        host, victim = next(iter(self._waiting)), None
        if len(self._under_way) >= self._most:
            longest, (began, _) = next(iter(self._under_way.items()))
            if now - began >= self._sure_s:
                victim = longest
            else:
                most_host, most = self._of.most_common(1)[0]
                poor = self._poorer(most)
                if poor is None:
                    return None
                host = poor
                victim = next(one for one, (_, of) in self._under_way.items() if of == most_host)
        one = next(reversed(self._waiting[host]))
        self._take_out(one, host)
        if host in self._waiting:
            # Its next one behind the others'.
            self._waiting[host] = self._waiting.pop(host)
        return one, victim

    def begin(self, one: T, host: str, now: float) -> None:
        """It is under way from now on."""
        self._under_way[one] = now, host
        self._of[host] += 1

    def wait_s(self, now: float) -> float:
        """Seconds until the longest has had its time; somebody may have to wait less."""
        if len(self._under_way) < self._most:
            return 0.0
        began, _ = next(iter(self._under_way.values()))
        return max(0.0, began + self._sure_s - now)

    def _poorer(self, most: int) -> str | None:
        """An address that would still have less with one more."""
        for host in list(islice(self._waiting, _LOOKED_AT)):
            if self._of[host] + 1 < most:
                return host
            self._waiting[host] = self._waiting.pop(host)
        return None

    def _take_out(self, one: T, host: str) -> None:
        waiting = self._waiting.get(host)
        if waiting is not None and waiting.pop(one, self) is None and not waiting:
            del self._waiting[host]
