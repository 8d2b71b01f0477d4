"""The turns in which delay levels and the timer deliver: one timer, retries, and the last save.

Each turn serves one *head*: the message that comes next, of a level or of the timer. The turn is
taken when a head is due. The wall clock may be set forward in between, so the subclass
(`_next_turn`) bounds how long the timer may sleep before it looks again.

A message that cannot be put now (disk full) is tried again after `RETRY_S`. All messages after it
wait, so none is lost and none overtakes another. If an error is a bug it is logged, and the head
waits for longer. A store that is broken ends the turns until a restart. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from aerobee.broker.delay.delivery_progress import DurableProgress
from aerobee.store.errors import StoreBroken, StoreClosed, StoreError

RETRY_S: Final = 0.1
# After an error that is a bug.
_LONG_RETRY_S = 10.0


@dataclass(slots=True, eq=False)
class Head:
    """The message that comes next, and when it may be tried."""

    not_before: float = 0.0  # loop time
    failures: int = 0

    @property
    def shown(self) -> str:
        """The text that names it in a line of the log; it begins with a space."""
        return ""


H = TypeVar("H", bound=Head)
P = TypeVar("P", bound=DurableProgress[Any])


class DeliveryTurns(ABC, Generic[H, P]):
    """The turns of one service. `kind` is the word for its messages in the log."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
        progress: P,
        log: logging.Logger,
        kind: str,
    ) -> None:
        self._loop = loop
        self._clock_ms = clock_ms
        self._progress = progress
        self._log = log
        self._kind = kind
        self._timer: asyncio.Handle | None = None
        self._wakes_at = 0.0  # loop time
        self._running = False
        #: How often a due message could not be stored; it was or will be tried again.
        self.put_failures = 0

    @abstractmethod
    def _next_turn(self) -> float | None:
        """When there is something to be done, as loop time; None if nothing waits."""

    @abstractmethod
    def _due(self, now_ms: int) -> H | None:
        """The head that is served in this turn; None if no head is due."""

    @abstractmethod
    def _serve(self, head: H, now_ms: int) -> None:
        """Do some of what is due. Raises StoreBroken, StoreClosed; OSError from reading."""

    def _halt(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def save_last(self) -> None:
        """Save the progress that is durable by now. The store calls this at its end, on some
        thread."""
        text = self._progress.take_changes()
        if text is None:
            return
        try:
            self._progress.save(text)
        except OSError as error:
            text = "%s not saved, messages will come twice why=%s"
            self._log.error(text, self._progress.name, error)

    def _arm(self) -> None:
        """Have the next turn when there is something to be done."""
        if self._running and (at := self._next_turn()) is not None:
            self._arm_at(at)

    def _arm_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = at
        wait_s = at - self._loop.time()
        if wait_s <= 0:
            self._timer = self._loop.call_soon(self._turn)
        else:
            self._timer = self._loop.call_later(wait_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now_ms = self._clock_ms()
        head = self._due(now_ms)
        if head is not None:
            self._try(head, now_ms)
        self._arm()

    def _try(self, head: H, now_ms: int) -> None:
        try:
            self._serve(head, now_ms)
        except StoreError as error:
            self._log.error("%s messages wait for a restart why=%s", self._kind, error)
            self._halt()
        except Exception:  # noqa: BLE001 - the top of a turn; the head is tried again
            text = "%s delivery failed, will be tried again%s"
            self._log.exception(text, self._kind, head.shown)
            self._retry(head, _LONG_RETRY_S)

    def _retry(self, head: H, after_s: float = RETRY_S) -> None:
        head.not_before = self._loop.time() + after_s

    def _put_failed(self, head: H, error: StoreError, shown: str) -> None:
        """A due message could not be stored: it is tried again, unless the store is broken."""
        self.put_failures += 1
        head.failures += 1
        if isinstance(error, StoreBroken | StoreClosed):
            raise error
        self._retry(head)
        if head.failures & (head.failures - 1) == 0:  # 1, 2, 4, 8, ...
            self._log.error(
                "%s message not delivered, will be tried again%s tries=%d why=%s",
                self._kind, shown, head.failures, error,
            )  # fmt: skip
