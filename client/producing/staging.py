"""The client's side of staged batches: effectively once into Aerobee brokers (decision 10).

    async with StageClient("127.0.0.1:9876") as client:
        await client.send_chunk(broker, header, body)             # tasks, as often as they like
        await client.commit(query, batch, parts, brokers)         # the driver, until it succeeds

Every request may be repeated, and is: a broker that is restarted in between answers as if nothing
had happened. So all calls here go on trying for `retry_s`, whatever the network does.

A batch may lie on several brokers. One of them is asked to decide (the same one for a query, as
long as the brokers are the same), then the others hear what was decided. A client that finds a
decision anywhere carries it out, and decides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from aerobee.client.connections.session import Role, Session
from aerobee.client.errors import (
    ClientError,
    NetworkError,
    NoRoute,
    PeerBusy,
    PeerError,
    SendFailed,
    Untrusted,
    reading,
)
from aerobee.client.options import Addresses, ClientOptions, ProducerOptions
from aerobee.client.producing.sender import Sender
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.routes import ClusterInfo, masters
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.hashing import java_hash
from aerobee.protocol.headers.stages import (
    DONE,
    NONE,
    STAGE_PROTOCOL,
    StageBatchHeader,
    StageCapability,
    StageChunkHeader,
    StagePart,
    StageState,
    decode_parts,
    encode_names,
    encode_parts,
)
from aerobee.protocol.names import AUTO_CREATE_TOPIC

T = TypeVar("T")

_DEFAULT_QUEUES: Final = 4
# How long a broker may hold a question for a batch's end.
_HOLD_S: Final = 2.0
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class Decision(NamedTuple):
    """The state of a batch at a broker, and the stages that its intent names."""

    state: str
    existed: bool
    published: int
    rows: int
    parts: tuple[StagePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingOptions(ClientOptions):
    """Options of a staging client."""

    retry_s: float = 60.0  # for one request, all tries together
    commit_timeout_s: float = 600.0  # for a batch to be published


class StageClient(Role):
    """Stages, commits and aborts. Belongs to the loop it was started on."""

    def __init__(self, name_servers: Addresses, options: StagingOptions | None = None) -> None:
        self.options = options or StagingOptions()
        super().__init__(Session(name_servers, self.options))
        self.local_ip = self._session.local_ip
        self._addresses: dict[str, str] = {}

    # --- brokers and queues -----------------------------------------------------------------------

    async def queues(self, topic: str, *, is_known: bool = False) -> list[MessageQueue]:
        """The queues that rows of a topic may go to, sorted; NoRoute without any.

        `is_known`: the topic is there, so a name server that does not know it is waited for: it
        was restarted, and its brokers have not registered again.
        """
        routes = self._session.routes
        return await self.with_backoff(
            lambda: routes.write_queues(topic, AUTO_CREATE_TOPIC, _DEFAULT_QUEUES),
            (NoRoute,) if is_known else (),
        )

    async def knows(self, topic: str) -> bool:
        """Whether a name server has a route of the topic's own; `queues` may assume one."""
        try:
            await self.with_backoff(lambda: self._session.routes.route(topic, refresh=True))
        except NoRoute:
            return False
        return True

    async def brokers(self, *, wait: bool = False) -> list[str]:
        """The names of all brokers with a master that the name servers know, sorted.

        `wait`: until there is such a broker. A name server that was restarted knows no brokers
        until they register again, and until then answers that it does not know the topic.
        """
        until = time.monotonic() + (self.options.retry_s if wait else 0)
        while True:
            await self.with_backoff(self._ask_brokers)
            if self._addresses or time.monotonic() + _PAUSE_S >= until:
                return sorted(self._addresses)
            await asyncio.sleep(_PAUSE_S)

    async def _ask_brokers(self) -> None:
        answer = await self._session.call_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        with reading("name server"):
            cluster = ClusterInfo.parse(answer.body)
        self._addresses = masters(cluster.brokers.values())

    async def capability(self, broker: str) -> StageCapability | None:
        """The staging that a broker offers; None if it is not ours, or speaks of it otherwise."""
        accept = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        answer = await self._ask(broker, RequestCode.STAGE_CAPABILITY, {}, accept=accept)
        if answer.code != ResponseCode.SUCCESS:
            return None
        with reading(broker):
            found = StageCapability.from_ext(answer.ext)
        return found if found.protocol == STAGE_PROTOCOL else None

    # --- tasks ------------------------------------------------------------------------------

    def sender(self, group: str) -> Sender:
        """For tasks that stage nothing: sends over the connections of this client."""
        return Sender(self._session, group, ProducerOptions())

    async def send_chunk(self, broker: str, header: StageChunkHeader, body: bytes) -> None:
        """Store a chunk; it is on the disk when the batch is committed."""
        await self._ask(broker, RequestCode.STAGE_CHUNK, header.to_ext(), body)

    # --- drivers ----------------------------------------------------------------------------

    async def commit(
        self, query: str, batch: int, parts: Sequence[StagePart], brokers: Iterable[str] = ()
    ) -> Decision:
        """Decide that `parts` are the batch, and wait until it is published.

        If it was decided before, that decision is carried out. `brokers`: where a decision may be,
        besides those of `parts`. The result is the decision; its state is DONE. Raises PeerError
        (STAGE_INCOMPLETE) if a stage is not there any more, or a topic of its rows was deleted
        since; SendFailed if the batch is decided but not published in time.
        """
        asked = sorted({*brokers, *(part.broker for part in parts)})
        if not asked:
            return Decision(NONE, False, 0, 0, ())
        until = time.monotonic() + self.options.commit_timeout_s
        known = {broker: await self.status(broker, query, batch) for broker in asked}
        found = [one for one in known.values() if one.state != NONE]
        if found:
            decided = max(found, key=lambda one: len(one.parts))._replace(existed=True)
        else:
            home = _home(query, asked)
            decided = known[home] = await self.intent(home, query, batch, parts, first=True)
        involved = {part.broker for part in decided.parts}
        for broker in sorted(involved):
            if broker not in known or known[broker].state == NONE:
                known[broker] = await self.intent(broker, query, batch, decided.parts)
        if decided.existed:
            await self._drop_elsewhere(query, batch, parts, involved)
        for broker, one in known.items():
            if one.state not in (NONE, DONE):
                await self._wait_done(broker, query, batch, until)
        return decided._replace(state=DONE)

    async def _drop_elsewhere(
        self, query: str, batch: int, parts: Sequence[StagePart], involved: Collection[str]
    ) -> None:
        """Give up what lies on brokers that the decision does not concern; the others do it."""
        for broker in sorted({part.broker for part in parts}.difference(involved)):
            names = [part.stage for part in parts if part.broker == broker]
            await self.drop(broker, query, batch, names)

    async def drop(self, broker: str, query: str, batch: int, stages: Sequence[str]) -> Decision:
        """Give stages up at one broker, if it has not decided the batch; how that stands there."""
        ext = StageBatchHeader(query, batch).to_ext()
        answer = await self._ask(broker, RequestCode.STAGE_ABORT, ext, encode_names(stages))
        return _decision(broker, answer)

    async def abort(
        self, query: str, batch: int, parts: Sequence[StagePart], brokers: Iterable[str] = ()
    ) -> bool:
        """Give stages up; False if the batch is decided, which is carried out then.

        All are asked before anybody drops a stage: it may be decided where the others have not
        heard of it. The broker that would decide drops first, and from then on decides nothing.
        """
        asked = sorted({*brokers, *(part.broker for part in parts)})
        states = [(await self.status(broker, query, batch)).state for broker in asked]
        names = [part.stage for part in parts]
        if all(state == NONE for state in states):
            home = _home(query, asked)
            for broker in sorted(asked, key=lambda one: one != home):
                if (await self.drop(broker, query, batch, names)).state != NONE:
                    break
            else:
                return True
        await self.commit(query, batch, (), asked)
        return False

    async def intent(
        self,
        broker: str,
        query: str,
        batch: int,
        parts: Sequence[StagePart],
        *,
        first: bool = False,
    ) -> Decision:
        """Ask one broker to decide; the answer is what counts there, durable. `first`: no other
        has decided the batch."""
        ext = StageBatchHeader(query, batch, first=first).to_ext()
        answer = await self._ask(broker, RequestCode.STAGE_INTENT, ext, encode_parts(parts))
        return _decision(broker, answer)

    async def status(self, broker: str, query: str, batch: int, wait_s: float = 0.0) -> Decision:
        """How a batch stands at one broker; waits so long for its end."""
        ext = StageBatchHeader(query, batch, int(wait_s * 1000)).to_ext()
        timeout_s = self.options.call_timeout_s + wait_s
        answer = await self._ask(broker, RequestCode.STAGE_STATUS, ext, timeout_s=timeout_s)
        return _decision(broker, answer)

    async def _wait_done(self, broker: str, query: str, batch: int, until: float) -> None:
        while True:
            one = await self.status(broker, query, batch, _HOLD_S)
            if one.state == DONE:
                return
            if time.monotonic() >= until:
                text = (
                    f"{broker} has published {one.published} of {one.rows} rows of batch {batch} "
                    f"of {query}; it goes on, and the next commit of the batch waits for the rest"
                )
                raise SendFailed(text, ((broker, ClientError(text)),))

    # --- asking -----------------------------------------------------------------------------

    async def _address(self, broker: str) -> str:
        known = self._session.routes.address(broker)
        if known is not None:
            return known
        if broker not in self._addresses:
            await self._ask_brokers()
        # No route mentions it, and no name server knows it: said in the session's words.
        return self._addresses.get(broker) or self._session.master(broker)

    async def _ask(
        self,
        broker: str,
        code: RequestCode,
        ext: dict[str, str],
        body: bytes = b"",
        *,
        accept: Collection[int] = (ResponseCode.SUCCESS,),
        timeout_s: float | None = None,
    ) -> Command:
        async def ask() -> Command:
            address = await self._address(broker)
            return await self._session.call(
                address, code, ext, body, timeout_s=timeout_s, accept=accept
            )

        return await self.with_backoff(ask, also=(NoRoute,))

    async def with_backoff(
        self, ask: Callable[[], Awaitable[T]], also: tuple[type[ClientError], ...] = ()
    ) -> T:
        """The result of `ask`, tried again while its error may pass (`also`: these as well): with
        pauses that grow to a second, for `retry_s` at most. Other errors are raised at once."""
        self._session.check_running()
        until = time.monotonic() + self.options.retry_s
        pause_s = _PAUSE_S
        while True:
            try:
                return await ask()
            except ClientError as error:
                may_pass = _may_pass_later(error) or isinstance(error, also)
                if not may_pass or time.monotonic() + pause_s >= until:
                    raise
                if isinstance(error, NetworkError):
                    self._session.refresh_routes_soon()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _may_pass_later(error: ClientError) -> bool:
    """Whether the same request may succeed when it is sent again: to a broker that is restarted,
    has a full disk, or is not known to a name server again yet."""
    if isinstance(error, PeerError):
        return isinstance(error, PeerBusy) or error.code == ResponseCode.FLUSH_DISK_TIMEOUT
    return isinstance(error, NetworkError) and not isinstance(error, Untrusted)


def _home(query: str, brokers: Sequence[str]) -> str:
    """The broker that decides for a query, "" without any; `brokers` are sorted."""
    return brokers[java_hash(query) % len(brokers)] if brokers else ""


def _decision(broker: str, answer: Command) -> Decision:
    with reading(broker):
        state = StageState.from_ext(answer.ext)
        parts = tuple(decode_parts(answer.body))
    return Decision(state.state, state.existed, state.published, state.rows, parts)
