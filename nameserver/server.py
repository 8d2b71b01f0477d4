"""The name server: routes and KV table behind a port.

Used alone (`aerobee nameserver`) and inside a broker process, where the broker registers over TCP
like any other. The loop answers every request, in steps if it concerns many topics; a change of the
KV table is answered when it is on disk. Saving runs on another thread, one save at a time; changes
that come meanwhile share the next one, so that no flood of changes can stall the loop with syncs.
Later requests of the same connection wait for that answer, so all answers keep the order of
requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from aerobee.access.accounts import Rules, administrator_account
from aerobee.access.administration import AUDITED_OF_NAME_SERVERS, OF_NAME_SERVERS, not_here
from aerobee.access.control import AccessControl
from aerobee.access.errors import AccountFileError
from aerobee.access.needs import NAME_SERVER_NEEDS
from aerobee.config.errors import ConfigError
from aerobee.config.model import SETTINGS, Settings
from aerobee.nameserver.kv import MAX_BYTES, Changes, KvFile, KvTable, KvText
from aerobee.nameserver.name_server_requests import RequestOptions, Requests
from aerobee.nameserver.routes import RouteLimits, RouteTable
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.fastjson import text_of
from aerobee.protocol.frames.pending_request import keep_for_answer
from aerobee.remoting.connection_limits import KIB, MIB, RemotingLimits
from aerobee.remoting.connection_stats import ServerStats
from aerobee.remoting.connections.connection import Connection, Handler
from aerobee.remoting.connections.serving import Answer, Serving
from aerobee.remoting.listening.arrivals import Encryption
from aerobee.remoting.listening.server import BACKLOG, RemotingServer
from aerobee.remoting.turns import Spread, Steps, Turns

if TYPE_CHECKING:
    from aerobee.access.account_service import AccessService
    from aerobee.access.audit.auditing import Auditing
    from aerobee.access.audit.recorder import Recorder
    from aerobee.access.files.credentials import Credentials

log = logging.getLogger("aerobee.nameserver")

#: A function that makes the audit, on the loop, of what the control lets in.
MakeAudit: TypeAlias = """Callable[
    [RouteTable, KvTable, AccessControl | None, asyncio.AbstractEventLoop], Auditing
]"""
#: A function that makes the service that judges changes, on the loop. Raises ConfigError.
MakeAccess: TypeAlias = "Callable[[asyncio.AbstractEventLoop], AccessService]"

DEFAULT_PORT = 9876
# Requests are small, registrations come once in 30 s: a small buffer, and less memory in all than
# the broker beside it may take. Changes of the KV table that a connection may have unanswered
# before it is read no further.
_CHANGES_WAITING = 512
# Unanswered changes of all connections together; the next ones wait for a save before they are
# served.
ALL_CHANGES_WAITING = 20_000
# Answers that leave in a step after a save.
_ANSWERED_AT_ONCE = 64
# Silent brokers that are dropped before the loop serves others.
_EXPIRED_AT_ONCE = 20
# Settings of RocketMQ's name server: its threads, and Netty's.
_SHOWN_WITHOUT_EFFECT = frozenset(
    {
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "useEpollNativeSelector",
    }
)
_NOT_SAVED = "the change holds until the name server stops, it could not be written to disk"
NAME_SERVER_LIMITS = RemotingLimits(read_buffer_bytes=64 * KIB, inbound_total_bytes=64 * MIB)


@dataclass(frozen=True, slots=True)
class NameServerOptions:
    """Limits and times of a name server; the defaults are the reference's."""

    remoting: RemotingLimits = NAME_SERVER_LIMITS
    # Without it TLS is refused.
    encryption: Encryption | None = None
    routes: RouteLimits = field(default_factory=RouteLimits)
    order_messages: bool = False
    max_inflated_bytes: int = 32 * MIB
    # Bytes of names and values of the KV table.
    max_kv_bytes: int = MAX_BYTES
    # Looking for silent brokers: first after 5 s, then every 10 s (protocol/WIRE.md 5.2).
    first_scan_s: float = 5.0
    scan_interval_s: float = 10.0
    # Host and port for changes of administrators; None: the only port takes them.
    admin: tuple[str, int] | None = None
    # Settings that GET_NAMESRV_CONFIG shows besides our own.
    shown: Mapping[str, str] = field(default_factory=dict)


class NameServerCounts(NamedTuple):
    """Counts for metrics."""

    brokers: int
    topics: int
    requests: dict[int, int]


class _UnsavedAnswer(NamedTuple):
    """An answer that leaves after a save, None for a oneway request. If it is about a change, which
    the save covers, it says success; else it only keeps its turn after another answer."""

    connection: Connection
    command: Command
    answer: bytes | None
    changed: bool


@dataclass(slots=True, eq=False)
class _WaitingAnswers:
    """The changes of one connection that are not answered yet; `done` when all are."""

    done: asyncio.Future[None]
    count: int = 0


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class NameServer(Serving):
    """A name server on one port. Loop thread only."""

    def __init__(
        self,
        host: str,
        port: int,
        kv_path: str | os.PathLike[str],
        options: NameServerOptions | None = None,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
        accounts: MakeAccess | None = None,
        audit: MakeAudit | None = None,
    ) -> None:
        """`kv_path`: file of the KV table, made on the first change; `accounts` makes the service
        that judges changes, None if everybody may change everything; `audit` is called for the
        first change, None if changes are no events. Raises OSError."""
        self._make_audit = audit
        self._make_access = accounts
        self._access: AccessService | None = None
        self._look: asyncio.TimerHandle | None = None
        super().__init__(Turns())
        self._host = host
        self._asked_port = port
        self._options = options or NameServerOptions()
        self._kv_file = KvFile(kv_path)
        self._kv = self._kv_file.load(self._options.max_kv_bytes)
        # For the worker, one save at a time.
        self._kv_text = KvText()
        self.routes = RouteTable(clock_ms, self._options.routes, self._turns)
        self._shown = self._shown_configuration()
        self._requests = Requests(
            self.routes,
            self._kv,
            RequestOptions(
                self._options.order_messages, self._options.max_inflated_bytes, self._shown
            ),
        )
        admin = self._options.admin
        self._server = self._listener(
            self if admin is None else _ClientPort(self, self._turns), "nameserver"
        )
        self._admin_server = self._listener(self, "nameserver admin")
        self._scan: asyncio.TimerHandle | None = None
        self._saving: asyncio.Future[None] | None = None
        # Answers to changes of the KV table that the next save will cover.
        self._unsaved: list[_UnsavedAnswer] = []
        # The number of such answers that a connection waits for, and a future for the last.
        self._waiting: dict[Connection, _WaitingAnswers] = {}
        # Answers that finished saves have covered, with the error of each save; some leave a turn.
        self._covered: deque[tuple[deque[_UnsavedAnswer], BaseException | None]] = deque()
        self._answering = Spread(self._turns, self._answer_some)
        # The number of answers that wait for a save or for their turn.
        self._answers_due = 0
        # Audited changes that the next save will cover; each gets the error of its save, or None.
        self._audited: list[asyncio.Future[BaseException | None]] = []
        # Done when half of them have left: each request that waits for it looks again then.
        self._room: asyncio.Future[None] | None = None
        self._request_counts: dict[int, int] = {}

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        encryption: Encryption | None = None,
        own: Credentials | None = None,
    ) -> Self:
        """Make a name server that a broker embeds, or that runs alone. `own`: the credentials of
        the broker that embeds it, if no file has them. Raises OSError."""
        return cls(
            settings.nameserver_host,
            settings.nameserver_port,
            settings.kv_file,
            NameServerOptions(
                order_messages=settings.nameserver_order_messages,
                shown=_without_effect(settings),
                max_inflated_bytes=settings.max_inflated_bytes,
                max_kv_bytes=settings.max_kv_bytes,
                encryption=encryption,
                admin=(settings.admin_host, settings.nameserver_admin_port)
                if settings.nameserver_admin_port
                else None,
            ),
            accounts=partial(_access_of, settings, own)
            if settings.nameserver_acl_enabled
            else None,
            audit=None
            if settings.audit_target == "off"
            else partial(_audit_of, settings, os.path.isdir(_root_of(settings))),
        )

    @property
    def access(self) -> AccessService | None:
        """The service that judges changes; None if everybody may change everything."""
        return self._access

    @cached_property
    def audit(self) -> Auditing | None:
        """The events of changes; None where `audit.target` is off."""
        if self._make_audit is None:
            return None
        control = None if self._access is None else self._access.control
        return self._make_audit(self.routes, self._kv, control, asyncio.get_running_loop())

    def recorder(self) -> Recorder | None:
        """The writer of events; None before the first."""
        audit = self.audit if "audit" in vars(self) else None
        return None if audit is None else audit.recorder

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def stats(self) -> ServerStats:
        """Counters of the port for all clients."""
        return self._server.stats

    @property
    def stats_of_ports(self) -> dict[str, ServerStats]:
        """Counters of each listening port, by its name in metrics."""
        found = {"nameserver": self._server.stats}
        if self._options.admin is not None:
            found["nameserver admin"] = self._admin_server.stats
        return found

    def counts(self) -> NameServerCounts:
        """Brokers and topics that are registered, and requests served by code."""
        return NameServerCounts(
            len(self.routes.live), len(self.routes.topics), dict(self._request_counts)
        )

    async def start(self) -> None:
        """Listen. Raises `RemotingListenError`, and ConfigError when no accounts can be had."""
        loop = asyncio.get_running_loop()
        if self._make_access is not None:
            self._access = self._make_access(loop)
            self._look_at_accounts(loop, self._access)
        await self._server.start(self._host, self._asked_port)
        if self._options.admin is not None:
            await self._admin_server.start(*self._options.admin)
        self._shown["listenPort"] = str(self.port)
        self._scan = loop.call_later(self._options.first_scan_s, self._expire)
        log.info("name server listens host=%s port=%d", self._host or "*", self.port)

    async def close(self) -> None:
        """Stop listening, finish saving, end the connections."""
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        if self._look is not None:
            self._look.cancel()
        if self._access is not None:
            await self._access.close()
        await self._server.stop_listening()
        await self._admin_server.stop_listening()
        while self._saving is not None:
            await asyncio.wait([self._saving])
            # The callback of the save, which may begin the next one, runs right after.
            await asyncio.sleep(0)
        while self._answer_some():
            pass
        await self._server.close()
        await self._admin_server.close()
        if (recorder := self.recorder()) is not None:
            await recorder.close()

    def _listener(self, handler: Handler, name: str) -> RemotingServer:
        options = self._options
        return RemotingServer(
            handler, options.remoting, name, turns=self._turns, encryption=options.encryption
        )

    # --- the server's handler

    def connection_opened(self, connection: Connection) -> None:
        """Do nothing: a new connection has no facts yet."""

    def connection_closed(self, connection: Connection, reason: str) -> None:
        self.routes.connection_closed(connection, reason)

    def serve(self, connection: Connection, command: Command) -> Answer:
        if self._access is not None:
            self._access.control.check(command, connection.peer[0])
        counts = self._request_counts
        known = self._requests.handles(command.code) or command.code == RequestCode.AUDIT_EVENTS
        # Unknown codes are counted together: clients must not make the table grow.
        code = command.code if known else -1
        counts[code] = counts.get(code, 0) + 1
        if code == RequestCode.AUDIT_EVENTS:
            return self._audit_events(command)
        if self._make_audit is not None and command.code in AUDITED_OF_NAME_SERVERS:
            assert self.audit is not None
            return self.audit.serve(self._change, connection, command)
        waiting = self._waiting.get(connection)
        if waiting is not None and not (
            self._requests.changes_kv(command.code) and waiting.count < _CHANGES_WAITING
        ):
            return self._serve_after(waiting.done, connection, command)
        if self._answers_due >= ALL_CHANGES_WAITING and self._requests.changes_kv(command.code):
            return self._serve_after(None, connection, command)
        return self._serve_now(connection, command)

    def _serve_after(
        self, done: asyncio.Future[None] | None, connection: Connection, command: Command
    ) -> Steps:
        if done is not None:
            yield done
        while self._answers_due >= ALL_CHANGES_WAITING:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            yield self._room
        answer = self._serve_now(connection, command)
        return (yield from answer) if isinstance(answer, Generator) else answer

    def _serve_now(self, connection: Connection, command: Command) -> Answer:
        before = self._kv.changes
        answer = self._requests.handle(connection, command)
        if isinstance(answer, Generator):
            return answer  # steps never touch the KV table
        changed = self._kv.changes != before
        waiting = self._waiting.get(connection)
        if waiting is None:
            if not changed:
                return answer
            done = asyncio.get_running_loop().create_future()
            waiting = self._waiting[connection] = _WaitingAnswers(done)
        waiting.count += 1
        # The table has the value, so it is not kept a second time; a body means nothing here.
        keep_for_answer(command)
        self._unsaved.append(_UnsavedAnswer(connection, command, answer, changed))
        self._answers_due += 1
        if self._saving is None:
            self._save()
        return None

    def _change(self, connection: Connection, command: Command) -> Answer:
        """Serve an audited change; raises what refuses it."""
        before = self._kv.changes
        answer = self._requests.change(connection, command)
        if isinstance(answer, Generator) or self._kv.changes == before:
            return answer
        return self._when_saved(answer)

    def _when_saved(self, answer: bytes) -> Steps:
        saved: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._audited.append(saved)
        if self._saving is None:
            self._save()
        yield saved
        if saved.result() is not None:
            raise BadRequest.system_error(_NOT_SAVED)
        return answer

    def _audit_events(self, command: Command) -> Steps:
        # The import brings modules that most name servers never need.
        from aerobee.access.audit.audit_requests import audit_events

        return audit_events(self.audit, command)

    def refuse(
        self, connection: Connection, command: Command, error: Exception, spent_s: float
    ) -> bytes:
        """A refusal says why. A bug of ours fails the request, but keeps the brokers registered on
        this connection."""
        if self._make_audit is not None and command.code in AUDITED_OF_NAME_SERVERS:
            assert self.audit is not None
            self.audit.refused(connection, command, error)
        if isinstance(error, BadRequest):
            return encode_response(command, error.code, error.remark)
        log.error("request failed code=%d", command.code, exc_info=error)
        return encode_response(
            command, ResponseCode.SYSTEM_ERROR, "internal error, see the name server's log"
        )

    # --- inside

    def _save(self) -> None:
        covered, self._unsaved = self._unsaved, []
        audited, self._audited = self._audited, []
        loop = asyncio.get_running_loop()
        saving = loop.run_in_executor(None, self._write, self._kv.take_changes())
        saving.add_done_callback(lambda done: self._saved(done, covered, audited))
        self._saving = saving

    def _write(self, changes: Changes) -> None:
        """Write the table with these changes. Worker thread; raises OSError."""
        self._kv_file.save(self._kv_text.text(changes))

    def _saved(
        self,
        done: asyncio.Future[None],
        covered: list[_UnsavedAnswer],
        audited: list[asyncio.Future[BaseException | None]],
    ) -> None:
        error = done.exception()
        if error is not None:
            log.error("KV table not saved path=%s why=%s", self._kv_file.path, error)
        self._saving = None
        if self._unsaved or self._audited:
            self._save()
        for change in audited:
            if not change.done():
                change.set_result(error)
        self._covered.append((deque(covered), error))
        self._answering.go_on()

    def _answer_some(self) -> bool:
        """Let some answers leave that a save has covered; False without such answers."""
        if not self._covered:
            return False
        covered, error = self._covered[0]
        for _ in range(min(_ANSWERED_AT_ONCE, len(covered))):
            self._let_leave(covered.popleft(), error)
        if not covered:
            self._covered.popleft()
        return True

    def _let_leave(self, unsaved: _UnsavedAnswer, error: BaseException | None) -> None:
        connection, command, answer, changed = unsaved
        self._answers_due -= 1
        if self._room is not None and self._answers_due <= ALL_CHANGES_WAITING // 2:
            self._room.set_result(None)
            self._room = None
        waiting = self._waiting[connection]
        waiting.count -= 1
        if not waiting.count:
            del self._waiting[connection]
            waiting.done.set_result(None)
        if answer is None:
            return
        if error is not None and changed:
            answer = encode_response(command, ResponseCode.SYSTEM_ERROR, _NOT_SAVED)
        self._turns.write(connection, answer)

    def _look_at_accounts(self, loop: asyncio.AbstractEventLoop, access: AccessService) -> None:
        access.look()
        self._look = loop.call_later(access.LOOK_S, self._look_at_accounts, loop, access)

    def _expire(self) -> None:
        expired = self.routes.expire(_EXPIRED_AT_ONCE)
        for broker in expired:
            if isinstance(broker.owner, Connection):
                broker.owner.close("broker expired")
        more = len(expired) == _EXPIRED_AT_ONCE
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(0 if more else self._options.scan_interval_s, self._expire)

    def _shown_configuration(self) -> dict[str, str]:
        """The configuration under RocketMQ's names; no paths."""
        options = self._options
        high_water = options.remoting.outbound_high_water_bytes
        return {
            **options.shown,
            "clusterTest": "false",
            "listenPort": str(self._asked_port),
            "orderMessageEnable": text_of(options.order_messages),
            "productEnvName": "center",
            "serverChannelMaxIdleTimeSeconds": str(int(options.remoting.idle_s)),
            "serverSocketBacklog": str(BACKLOG),
            "writeBufferHighWaterMark": str(high_water),
            "writeBufferLowWaterMark": str(high_water // 4),
        }


class _ClientPort(Serving):
    """The handler of a name server's port where administrators have a port of their own."""

    def __init__(self, server: NameServer, turns: Turns) -> None:
        super().__init__(turns)
        self._server = server

    def serve(self, connection: Connection, command: Command) -> Answer:
        if command.code in OF_NAME_SERVERS:
            raise not_here(command.code, "nameserver.admin_port", "mqadmin and aerobee: -n")
        return self._server.serve(connection, command)

    def refuse(
        self, connection: Connection, command: Command, error: Exception, spent_s: float
    ) -> bytes:
        return self._server.refuse(connection, command, error, spent_s)

    def connection_opened(self, connection: Connection) -> None:
        self._server.connection_opened(connection)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        self._server.connection_closed(connection, reason)


def _access_of(
    settings: Settings, own: Credentials | None, loop: asyncio.AbstractEventLoop
) -> AccessService:
    # The import brings the library for YAML.
    from aerobee.access.account_service import AccessService

    def make(rules: Rules) -> AccessControl:
        # No request to a name server names a place in a log.
        return AccessControl(
            rules, NAME_SERVER_NEEDS, lambda _offset: None, loop.time, others_open=True
        )

    always = () if own is None else (administrator_account(*own),)
    try:
        home, named = settings.rocketmq_home, settings.acl_file
        return AccessService(loop, home, named, make, always=always, server="nameserver")
    except AccountFileError as error:
        raise ConfigError("namesrvAclEnable", "true", str(error)) from None


def _root_of(settings: Settings) -> str:
    """Where files of a name server are made."""
    kv_path = settings.nameserver_kv_path
    return os.path.dirname(kv_path) if kv_path else settings.store_path


def _audit_of(
    settings: Settings,
    has_root: bool,
    routes: RouteTable,
    kv: KvTable,
    access: AccessControl | None,
    loop: asyncio.AbstractEventLoop,
) -> Auditing:
    # The import brings modules that most name servers never need.
    from aerobee.nameserver.audited import name_server_audit

    return name_server_audit(
        settings, routes, kv, access=access, has_root=has_root, loop=loop, clock_ms=wall_clock_ms
    )


def _without_effect(settings: Settings) -> dict[str, str]:
    """Settings that RocketMQ's name server shows and that have no effect here."""
    return {
        setting.rocketmq_key: text_of(settings.value_of(setting))
        for setting in SETTINGS
        if setting.rocketmq_key in _SHOWN_WITHOUT_EFFECT
    }
