"""Drains this broker: its producers go to other brokers before it stops, and no send fails.

`aerobee broker drain`, POST /drain and the first SIGTERM come in here. The broker asks a name
server which of its topics other masters take (cluster/registration/takers.py), and registers those
without the right to write. Clients read routes every 30 s and choose other queues then; sends that
still come are served, and pulls go on all the time.

    serving --begin--> asking --somebody takes over--> draining --producers have left--> drained
       ^                 '--nobody does: refused             '----or their time is over----'
       '-----------------------------------undo-----------------------------------------------'

Producers have left when nothing was sent for `_QUIET_S`, and everybody who may hold the earlier
route has read it again: `drain.route_refresh_ms` after the last name server was told, or at once if
no producer is connected. Rare senders need that time: between two of their sends nothing shows
whether they know the new route.

A topic that nobody else takes keeps its rights, since its producers could go nowhere, unless
`everything` is to be drained. The name server is asked again every few seconds: if the others go as
well, the topics get their rights back. Nothing of this is stored: the next start registers with all
rights.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final, NamedTuple

from aerobee.broker.broker_stats import MESSAGE_DELAY
from aerobee.broker.cluster.registration.takers import find_taken
from aerobee.protocol.bodies.drain import (
    ASKING,
    DRAINED,
    DRAINING,
    MOST_NAMED,
    SERVING,
    DrainStatus,
)
from aerobee.protocol.bodies.routes import PERM_WRITE
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.names import is_retry_topic
from aerobee.remoting.errors import RemotingError

if TYPE_CHECKING:
    from aerobee.broker.cluster.registration.registration import Registrar
    from aerobee.broker.core import BrokerCore

log = logging.getLogger("aerobee.broker.drain")

# Nothing was sent for this long: producers that send all the time have gone, and a send that was
# under way has come.
_QUIET_S: Final = 2.0
_TICK_S: Final = 0.2
# Between two looks who takes over, and once nobody waits for that any more; at least ten times as
# long as a look takes, which is a request for each topic. And the longest that one name server gets
# to answer all of it.
_LOOK_AGAIN_S: Final = 5.0
_LOOK_RARELY_S: Final = 30.0
_PAUSE_AT_LEAST: Final = 10
_ASK_ALL_S: Final = 10.0
# Topics and counters that are looked at in a turn of the loop.
_STEP: Final = 1000
# Between two reports to the supervisor.
_REPORT_S: Final = 5.0
_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.STAGE_CHUNK,
        RequestCode.STAGE_INTENT,
    }
)
# Java's consumers are members of it as well, for messages that they cannot give back.
_NO_PRODUCERS: Final = "CLIENT_INNER_PRODUCER"


class _EveryTopic(Container[str]):
    """Contains the name of each topic, also of those that are yet to be made."""

    def __contains__(self, _name: object) -> bool:
        return True


_EVERY_TOPIC: Final = _EveryTopic()


class _Writable(NamedTuple):
    """The topics that producers may send to: all, and those that people have made."""

    names: list[str]
    users: list[str]


class Drain:
    """Drains one broker. `close` ends its task."""

    def __init__(
        self, core: BrokerCore, registrar: Registrar, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = core.settings
        self._core = core
        self._registrar = registrar
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._state = SERVING
        self._reason = ""
        # Whether topics that nobody else takes are drained as well.
        self._everything = False
        # The names of topics that are registered without the right to write.
        self._withheld: Container[str] = frozenset()
        self._withheld_count = 0
        self._untaken: list[str] = []
        self._since_ms: int | None = None
        self._began = self._sent_at = 0.0
        self._told_at: float | None = None
        self._sends = 0
        self._senders_left: bool | None = None
        # Set unless name servers are being asked for `begin`; set while nothing is to be waited
        # for.
        self._heard = asyncio.Event()
        self._heard.set()
        self._over = asyncio.Event()
        self._over.set()
        # Set to look at once who takes over.
        self._wake = asyncio.Event()

    # --- for those who come in

    def begin(self, *, everything: bool = False) -> None:
        """Begin, or go on; `status` says what came of it. With `everything` also topics that nobody
        else takes are drained."""
        if self._task is None:
            self._reason, self._everything = "", everything
            if self._core.role.is_slave:
                self._reason = "a slave takes no sends, so there is nobody to let go"
                return
            self._state = ASKING
            self._heard.clear()
            self._over.clear()
            self._task = asyncio.create_task(self._run(), name="drain")
            self._task.add_done_callback(self._ended)
        elif everything and not self._everything:
            self._everything = True
            if self._state != ASKING:
                self._start_clock()
                self._heard.clear()
                self._wake.set()

    async def begin_and_hear(self, *, everything: bool = False) -> DrainStatus:
        """`begin`, and return the status once the name servers have answered."""
        self.begin(everything=everything)
        await self._heard.wait()
        return self.status()

    async def wait_over(self) -> DrainStatus:
        """Return the status when there is nothing to wait for any more."""
        await self._over.wait()
        return self.status()

    def undo(self) -> None:
        """Register all topics with their rights again; nothing happens unless a drain is under
        way."""
        if self._task is not None:
            log.info("drain undone")
            self._end("")

    async def before_stop(self, report: Callable[[str], None]) -> None:
        """Drain for a stop that follows: return when the producers have left or their time is over,
        or at once when nobody takes over. `report` gets a line for people every few seconds."""
        await self.begin_and_hear()
        while not self._over.is_set():
            report(self.text())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_S):
                    await self._over.wait()
        log.info("drain before the stop is over why=%s", self.text())

    def close(self) -> None:
        """End the task. Name servers are told nothing: the broker leaves them anyway."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._heard.set()
        self._over.set()

    def problem(self) -> str | None:
        """Why the broker should get no traffic: the reason for readiness. While nobody else takes
        its topics it should."""
        is_under_way = self._state in (DRAINING, DRAINED)
        return self.text() if is_under_way and self._withheld else None

    def text(self) -> str:
        """The state as a line for people."""
        if self._state == SERVING:
            return self._reason or "the broker is not drained"
        if self._state == ASKING:
            return "draining: name servers are asked who takes over"
        if self._state == DRAINED:
            return f"drained: {self._reason}"
        passed_s = self._clock() - self._began
        return (
            f"draining for {passed_s:.0f} s of {self._settings.drain_timeout_ms / 1000:.0f} s at "
            f"most: {self._reason}"
        )

    def status(self) -> DrainStatus:
        """The state as an answer to requests."""
        is_under_way = self._state in (DRAINING, DRAINED)
        return DrainStatus(
            state=self._state,
            reason=self._reason,
            senders_left=self._senders_left if is_under_way else None,
            since_ms=self._since_ms if is_under_way else None,
            withheld=self._withheld_count if is_under_way else 0,
            untaken=sorted(self._untaken[:MOST_NAMED]) if is_under_way else [],
            untaken_count=len(self._untaken) if is_under_way else 0,
            producer_groups=self._producer_groups(),
            quiet_ms=round((self._clock() - self._sent_at) * 1000) if is_under_way else None,
            timeout_ms=self._settings.drain_timeout_ms,
        )

    # --- inside

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            asked = self._clock()
            writable = await self._writable()
            taken = await self._ask_taken(writable.names)
            took_s = self._clock() - asked
            if self._state == ASKING:
                if (refused := self._why_not(taken, writable.users)) is not None:
                    log.info("not drained why=%s", refused)
                    self._end(refused)
                    return
                self._start()
            if taken is not None:
                await self._take_over(taken, writable)
            self._heard.set()
            looked = self._clock()
            while self._clock() - looked < self._pause_s(took_s) and not self._wake.is_set():
                await self._judge()
                await asyncio.sleep(_TICK_S)

    def _pause_s(self, took_s: float) -> float:
        pause_s = _LOOK_RARELY_S if self._state == DRAINED else _LOOK_AGAIN_S
        return max(pause_s, _PAUSE_AT_LEAST * took_s)

    async def _ask_taken(self, names: list[str]) -> frozenset[str] | None:
        """Those topics that other masters take; None when no name server could be asked."""
        for link in self._registrar.links_registered():
            try:
                async with asyncio.timeout(_ASK_ALL_S):
                    return await find_taken(link, self._settings.broker_name, names)
            except (RemotingError, TimeoutError) as error:
                log.info(
                    "name server not asked who takes over server=%s why=%s", link.server, error
                )
        return None

    async def _writable(self) -> _Writable:
        found = _Writable([], [])
        is_system = self._core.topics.is_system
        for number, topic in enumerate(self._core.topics.all(), 1):
            if topic.perm & PERM_WRITE:
                found.names.append(topic.name)
                if not is_system(topic.name) and not is_retry_topic(topic.name):
                    found.users.append(topic.name)
            if number % _STEP == 0:
                await asyncio.sleep(0)
        return found

    def _why_not(self, taken: frozenset[str] | None, users: list[str]) -> str | None:
        if not self._settings.broker_permission & PERM_WRITE:
            return "broker.permission lets nobody send here, so there is nobody to let go"
        if taken is None:
            return "no name server answers, so producers cannot be told to go elsewhere"
        if self._everything or not taken.isdisjoint(users):
            return None
        return (
            "no other master that the name servers know takes a topic of this broker, so its "
            "producers could go nowhere"
        )

    def _start(self) -> None:
        log.info("drain begins everything=%s", self._everything)
        self._since_ms = time.time_ns() // 1_000_000
        self._start_clock()

    def _start_clock(self) -> None:
        self._state, self._began = DRAINING, self._clock()
        self._senders_left = False
        self._over.clear()

    async def _take_over(self, taken: frozenset[str], writable: _Writable) -> None:
        """Take in which topics other masters take now, and tell the name servers."""
        self._untaken = [name for name in writable.users if name not in taken]
        self._withheld_count = len(writable.names) if self._everything else len(taken)
        withheld = _EVERY_TOPIC if self._everything else taken
        if withheld == self._withheld:
            return
        is_first = not self._withheld
        self._withheld = withheld
        self._registrar.withhold(withheld)
        self._told_at = None
        self._sends, self._sent_at = await self._count_sends(), self._clock()
        if is_first and self._is_idle():
            self._sent_at -= _QUIET_S

    async def _judge(self) -> None:
        """Look whether the producers have left, or their time is over."""
        sends, now = await self._count_sends(), self._clock()
        if self._wake.is_set():
            return  # more topics are about to be drained
        if sends != self._sends:
            self._sends, self._sent_at = sends, now
        if self._told_at is None and self._registrar.all_told:
            self._told_at = now
        missing = self._why_they_stay(now)
        self._senders_left = missing is None
        if missing is None:
            self._become_drained("no producer sends here any more")
        elif now - self._began >= self._settings.drain_timeout_ms / 1000:
            self._become_drained(f"its time is over, though {missing}")
        elif self._state == DRAINING:
            self._reason = missing
        if self._state == DRAINED or not self._withheld:
            self._over.set()

    def _become_drained(self, reason: str) -> None:
        if self._state == DRAINING:
            log.info("drained why=%s", reason)
        self._state, self._reason = DRAINED, reason

    def _why_they_stay(self, now: float) -> str | None:
        """Why producers may send here yet; None if they have left."""
        if not self._withheld:
            return "no other master takes its topics any more, so they keep their rights"
        if self._told_at is None:
            return "the name servers have not taken over yet that it may not be written"
        if now - self._sent_at < _QUIET_S:
            return f"messages were sent here in the last {_QUIET_S:.0f} s"
        left_s = self._told_at + self._settings.drain_route_refresh_ms / 1000 - now
        groups = self._producer_groups()
        if left_s > 0 and groups:
            return (
                f"producers of {groups} groups may send by their old routes for {left_s:.0f} s more"
            )
        return None

    def _is_idle(self) -> bool:
        """Whether nobody is connected who may send, and nothing was stored in the last seconds."""
        return not self._producer_groups() and not self._core.store.stats_service.rates().put[0]

    async def _count_sends(self) -> int:
        """A count that moves with each send that a drain should have turned away."""
        stats = self._core.stats
        if not self._untaken or self._everything:
            return sum(one.count for one in stats.requests() if one.key.code in _SENDS)
        # Producers of topics that nobody else takes go on. Deliveries of delayed messages are no
        # sends, and delayed messages are not counted for their topics before.
        sends = 0
        for number, one in enumerate(stats.topics(), 1):
            if one.topic in self._withheld and one.message_type != MESSAGE_DELAY:
                sends += one.messages_in
            if number % _STEP == 0:
                await asyncio.sleep(0)
        return sends

    def _producer_groups(self) -> int:
        names = self._core.clients.producer_group_names()
        return len(names) - names.count(_NO_PRODUCERS)

    def _end(self, reason: str) -> None:
        """Serve as before."""
        task, self._task = self._task, None
        if self._state in (DRAINING, DRAINED):
            self._registrar.withhold(())
        self._state, self._reason, self._senders_left = SERVING, reason, None
        self._withheld, self._untaken = frozenset(), []
        self._heard.set()
        self._over.set()
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The task ends by cancellation or by itself; anything else is a bug, which must be seen
        and must not keep a stop waiting."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("draining has stopped", exc_info=error)
            self._end("the drain has failed, and the log says why")
