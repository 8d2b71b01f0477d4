"""The daemon: starts a broker with its ports and its name server in order, stops it in reverse.

Start: HTTP (so that probes see the recovery), store (lock, recovery, in a thread), broker core,
embedded name server, client ports, first registration, READY. Stop: no more connections, leave the
name servers, close the client ports, answer held pulls, save offsets, close the store, HTTP last.

One event loop thread runs everything but the store's flush and allocation threads. A failed start
is undone in reverse, and its error raised; the command line turns it into one line and an exit
code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aerobee.access.errors import AccountFileError
from aerobee.access.files.account_places import tools_file
from aerobee.broker.appending.store_events import StoreEvents
from aerobee.broker.background.live_settings import LiveSettings
from aerobee.broker.background.scheduler import Scheduler
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.broker_address import (
    Identity,
    ReservedPorts,
    decide_advertised,
    ha_endpoint,
)
from aerobee.broker.cluster.registration.exposure import exposures
from aerobee.broker.cluster.registration.master_address import check_master
from aerobee.broker.cluster.registration.registration import Registrar
from aerobee.broker.core import BrokerCore
from aerobee.broker.lifecycle.free_ports import check_ports_free
from aerobee.broker.monitoring.health_checks import (
    HealthChecks,
    LoopMonitor,
    disk_probe,
    health_routes,
    registered_probe,
)
from aerobee.broker.monitoring.http import (
    Changing,
    HttpLimits,
    HttpServer,
    Request,
    Response,
    Route,
)
from aerobee.broker.monitoring.kept_tables import aside_probe, saving_probe
from aerobee.broker.monitoring.metrics import Metrics
from aerobee.broker.monitoring.network_metrics import http_port
from aerobee.broker.monitoring.replication import note_replication
from aerobee.broker.monitoring.setup import add_broker, add_network, metrics_of_process
from aerobee.broker.monitoring.systemd import Notifier, Supervision
from aerobee.config.bounds.limits import check_limits, connection_limit
from aerobee.config.bounds.memory import available_memory, memory_of, memory_warning
from aerobee.config.errors import ConfigError
from aerobee.config.loading.reload import Reload
from aerobee.config.model import Settings
from aerobee.config.ports import VIP_BELOW, check_ports, listeners, reachable
from aerobee.config.tls.certificates import (
    PortCertificates,
    ServerCertificates,
    registration_context,
    server_certificates,
)
from aerobee.nameserver.server import NameServer
from aerobee.native.form import CompiledForm, NativeError, chosen
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.listening.server import RemotingServer
from aerobee.remoting.peers import address_text
from aerobee.remoting.turns import Turns
from aerobee.store.disk.files import Files
from aerobee.store.disk.lock import StoreLock
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore

if TYPE_CHECKING:
    from aerobee.access.account_service import AccessService
    from aerobee.access.files.credentials import Credentials
    from aerobee.broker.broker_stats import RefusalMemory
    from aerobee.broker.lifecycle.drain import Drain
    from aerobee.broker.monitoring.overview.growth import RecentGrowth
    from aerobee.broker.monitoring.overview.requests import OverviewRequests
    from aerobee.protocol.frames.command import Command
    from aerobee.remoting.connections.connection import Connection
    from aerobee.remoting.connections.serving import Answer

log = logging.getLogger("aerobee.daemon")

# At a stop, sends that wait for their sync get this time: many times a healthy sync.
_DRAIN_S = 5.0
# A drain says every five seconds that it goes on.
_DRAIN_EXTENSION_S = 15.0
# How often the growth of log and traffic is looked at.
_GROWTH_S = 10.0
# Requests that are answered by what only the whole daemon knows.
_OVERVIEW = (RequestCode.BROKER_STATUS, RequestCode.CLIENTS)


class Addresses(NamedTuple):
    """The addresses for clients and those of the parts; empty text for a part that is off."""

    broker: str
    vip: str
    admin: str
    name_server: str
    name_servers: tuple[str, ...]
    http: str
    slaves: str


class StartAbandoned(Exception):
    """The daemon was asked to stop before it was ready; the started parts are stopped again."""


class Daemon:
    """A broker process. Call `start` once, `stop` once; both on the loop that runs it."""

    def __init__(
        self, settings: Settings, notifier: Notifier | None = None, reload: Reload | None = None
    ) -> None:
        """`reload` reads the configuration again, into these settings; without it they stay."""
        self.settings = settings
        self._reload = reload
        self._live_settings: LiveSettings | None = None
        self.stats = BrokerStats(light=settings.lmq_enabled, remember=_refusals)
        # Answers administrators who ask how the broker is; None until the first does.
        self._overview: OverviewRequests | None = None
        self._growth: RecentGrowth | None = None
        self.health = HealthChecks()
        check_limits(settings)
        #: The compiled form of the hot path, None if the plain form runs.
        self.form = _form()
        limit = connection_limit(settings)
        self._limits = remoting_limits(settings, limit.connections)
        self._notifier = notifier or Notifier({})
        self._supervision = Supervision(self._notifier, self.health)
        # The functions that stop the started parts, with their names.
        self._undo: list[tuple[str, Callable[[], Awaitable[None] | None]]] = []
        self._serving = False
        self._stop_asked = False
        self._returns = False
        self.health.add(
            "serving",
            lambda: None if self._serving else "the broker is starting or stopping",
            "wait; the log shows how far it is",
        )
        self.warnings: tuple[str, ...] = limit.warnings
        self._http: HttpServer | None = None
        # The context for connections to name servers, and the credentials that sign requests to
        # them.
        self._outgoing: ssl.SSLContext | None = None
        self._credentials: Credentials | None = None
        self._certificates: ServerCertificates | None = None
        # It exists from `start` on.
        self.store: MessageStore
        self.core: BrokerCore
        # Writes the progress of delays and timer down, at the store's end; None while there is no
        # core.
        self._save_last: Callable[[], None] | None = None
        self.registrar: Registrar
        self.addresses: Addresses
        # Made when somebody asks for it: most daemons are never drained.
        self._drain: Drain | None = None

    async def start(self) -> None:
        """Start everything. A failed start is undone and raises its error: `StoreError`,
        `RemotingListenError`, `AddressError`, `ConfigError` (two parts on one port),
        `StateFileError` or OSError, each with a text that a person can act on. Raises
        `StartAbandoned` after `abandon_start`.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    @property
    def serving(self) -> bool:
        """Whether it has started and not begun to stop."""
        return self._serving

    def abandon_start(self) -> None:
        """Let a `start` under way end at its next step. A recovery is a single step, which is not
        broken off, because the next start would have to begin it anew.
        """
        self._stop_asked = True

    def will_return(self) -> None:
        """The `stop` to come is followed by a start at once: clients are to keep their routes."""
        self._returns = True

    async def let_producers_go(self) -> None:
        """Drain for the stop that follows: returns when the producers have left, and at once where
        no other broker takes over."""
        drains = self._serving and self.settings.drain_timeout_ms and not self.core.role.is_slave
        if drains and self.registrar.links_registered():
            await self._the_drain().before_stop(self._report_drain)

    def _report_drain(self, text: str) -> None:
        self._notifier.stopping(text)
        self._notifier.extend_timeout(_DRAIN_EXTENSION_S)

    def _the_drain(self) -> Drain:
        """Raises BadRequest before the broker serves."""
        if not self._serving:
            raise BadRequest.system_error("the broker is starting or stopping, and is not drained")
        if self._drain is None:
            from aerobee.broker.lifecycle.drain import Drain

            self._drain = Drain(self.core, self.registrar)
        return self._drain

    def _drain_request(self, _connection: Connection, command: Command) -> bytes:
        from aerobee.broker.lifecycle.drain_doors import serve_request

        return serve_request(self._the_drain(), command)

    async def _drain_route(self, request: Request) -> Response:
        from aerobee.broker.lifecycle.drain_doors import serve_http

        try:
            drain = self._the_drain()
        except BadRequest as error:
            return Response(503, f"{error.remark}\n".encode())
        return await serve_http(drain, request, self.settings.drain_token, self.core.audit)

    async def read_settings_again(self) -> None:
        """Take over the present configuration (config/loading/reload.py), and the present files of
        certificates, as an audit event. Call it once the daemon serves."""
        audit = self.core.audit
        if audit is None:
            await self._read_settings_again()
            return
        # The import brings modules that are needed once somebody changes something.
        from aerobee.broker.requests.administration.auditing.broker_audit import audited_reload

        try:
            await audited_reload(audit, self.settings, self._read_settings_again)
        except BadRequest as error:
            log.error("configuration not read again why=%s", error.remark)

    async def _read_settings_again(self) -> None:
        if self._certificates is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._certificates.read_again)
        if self._live_settings is not None:
            await self._live_settings.read_again()
        if self.core.access is not None:
            await self.core.access.read_again()

    async def stop(self) -> None:
        """Stop the started parts, in reverse; every step is tried even if an earlier one failed."""
        self._serving = False
        self._notifier.stopping("stopping")
        failures: list[Exception] = []
        while self._undo:
            what, undo = self._undo.pop()
            try:
                stopping = undo()
                if stopping is not None:
                    await stopping
            except (StoreError, OSError) as error:
                # A known fault, such as a store that was taken away: its text is enough.
                log.error("stop failed what=%s why=%s", what, error)
                failures.append(error)
            except Exception as error:
                log.exception("stop failed what=%s", what)
                failures.append(error)
        if failures:
            raise ExceptionGroup("the daemon did not stop cleanly", failures)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self.settings
        await self._check_first(settings)
        scheduler = Scheduler(loop)
        self._undo.append(("timers", scheduler.stop))
        turns = Turns()
        monitor = LoopMonitor(loop, turns)
        monitor.start()
        self._undo.append(("loop monitor", monitor.stop))
        self._undo.append(("watchdog", self._supervision.stop))
        metrics = metrics_of_process(settings, self.stats, self.health, monitor, self.form)
        self._undo.append(("metrics", metrics.close))
        http = await self._start_http(metrics, monitor)
        advertised = decide_advertised(settings.advertised_host, settings.listen_host)
        check_master(settings, advertised)
        self._tell_exposures(advertised.warnings)
        events = StoreEvents(loop)
        self.store = await self._open_store(loop, events)
        self._undo.append(("store", self._close_store))
        self._check_not_abandoned()
        if self._reload is not None:
            self._live_settings = LiveSettings(loop, self._reload, self._settings_changed)
            self._undo.append(("settings", self._live_settings.close))
        with contextlib.ExitStack() as reserved:
            port = settings.listen_port or self._reserve_port(reserved)
            identity = Identity(advertised, port)
            self.core = self._build_core(loop, turns, events, identity)
            self.core.complete_tables()
            add_broker(metrics, self.core)
            name_server = await self._start_name_server()
            ha_port = await self._start_ha_port()
            vip = await self._start_client_ports(port)
        host = reachable(settings.nameserver_host)
        embedded = f"{host}:{name_server.port}" if name_server else ""
        servers = settings.name_server_list or ((embedded,) if embedded else ())
        ha_address = ha_endpoint(settings, advertised, ha_port)
        self.registrar = Registrar(
            settings,
            identity,
            self.core.topics,
            servers,
            ha_address=ha_address,
            tls=self._outgoing,
            credentials=self._credentials,
        )
        self._undo.append(("registration", self._leave_name_servers))
        self._undo.append(("drain", lambda: None if self._drain is None else self._drain.close()))
        self._show_network(metrics, name_server)
        await self._ask_slaves(settings.name_server_list, identity.endpoint)
        await self.registrar.start()
        self.warnings += self.registrar.warnings
        own = identity.endpoint, advertised.endpoint(vip) if vip else "", _admin_address(settings)
        self.addresses = Addresses(*own, embedded, servers, http, ha_address)
        self._follow()
        self.core.start_tasks(scheduler)
        self._start_checks(scheduler, monitor)
        self._check_not_abandoned()
        self._serving = True

    async def _check_first(self, settings: Settings) -> None:
        """Find faults that would stop the start before anything is made."""
        check_ports(settings)
        self._read_certificates(settings)
        memory = memory_of(settings, available_memory())
        if (warning := memory_warning(settings, memory)) is not None:
            log.warning("%s", warning)
            self.warnings += (warning,)
        # With two daemons on one directory the ports are taken, too: this error says more.
        StoreLock(Files(), settings.store_path).probe()
        await check_ports_free(listeners(settings))

    def _serve_overview(self, _connection: Connection, command: Command) -> Answer:
        """Tell an administrator how the broker is, or who is connected."""
        if not self._serving:
            raise BadRequest(
                ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is starting or stopping"
            )
        if self._overview is None:
            self._overview = self._make_overview()
        return self._overview.serve(command)

    def _make_overview(self) -> OverviewRequests:
        # The imports bring modules that a start does without.
        from aerobee.broker.monitoring.overview.broker_status import Parts
        from aerobee.broker.monitoring.overview.requests import OverviewRequests

        parts = Parts(
            core=self.core,
            health=self.health,
            stats=self.stats,
            growth=self._recent_growth(),
            registrar=self.registrar,
            servers=self._servers,
            http=self._http,
        )
        return OverviewRequests(parts, asyncio.get_running_loop().time)

    def _recent_growth(self) -> RecentGrowth:
        if self._growth is None:
            # The import brings a module that a start does without.
            from aerobee.broker.monitoring.overview.growth import RecentGrowth

            self._growth = RecentGrowth()
        return self._growth

    def _sample_growth(self) -> None:
        stats = [server.stats for server in self._servers.values()]
        received = sum(one.bytes_in for one in stats)
        sent = sum(one.bytes_out for one in stats)
        self._recent_growth().sample(self.store.written, received, sent)

    def _show_network(self, metrics: Metrics, name_server: NameServer | None) -> None:
        add_network(
            metrics,
            self.core,
            servers={name: server.stats for name, server in self._servers.items()},
            registrar=self.registrar,
            name_server=name_server,
            http=self._http,
            certificates=self._certificates,
        )

    def _check_not_abandoned(self) -> None:
        if self._stop_asked:
            raise StartAbandoned("asked to stop while starting")

    async def _start_http(self, metrics: Metrics, monitor: LoopMonitor) -> str:
        settings = self.settings
        if not settings.http_enabled or not settings.http_port:
            return ""
        routes: dict[str, Route | Changing] = {
            **health_routes(self.health, monitor),
            "/metrics": metrics.route,
            **dict.fromkeys(("/drain", "/drainz"), Changing(self._drain_route)),
        }
        limits = HttpLimits(connections=settings.http_connections)
        certificates = self._certificates
        encryption = None if certificates is None else certificates.http
        server = HttpServer(settings.http_host, settings.http_port, routes, limits, encryption)
        await server.start()
        self._undo.append(("http", server.close))
        self._http = server
        metrics.add("http", http_port, server)
        return f"{settings.http_host}:{server.port}"

    def _reserve_port(self, reserved: contextlib.ExitStack) -> int:
        ports = ReservedPorts(reachable(self.settings.listen_host))
        reserved.callback(ports.release)
        return ports.port

    @property
    def _encryption(self) -> PortCertificates | None:
        return None if self._certificates is None else self._certificates.clients

    async def _open_store(
        self, loop: asyncio.AbstractEventLoop, events: StoreEvents
    ) -> MessageStore:
        """Open and recover on a thread, and report the progress to the supervisor."""
        progress = self._supervision.begin_recovery(loop)
        store = await loop.run_in_executor(
            None,
            lambda: MessageStore.open(
                self.settings,
                progress=progress,
                compiled=None if self.form is None else self.form.store,
                listener=events,
            ),
        )
        self._supervision.end_recovery()
        if not self.settings.starts_as_slave or store.log.segments.segments:
            # The log of an empty slave begins where its master's does, which nobody knows yet.
            store.log.make_ahead()
        return store

    def _build_core(
        self, loop: asyncio.AbstractEventLoop, turns: Turns, events: StoreEvents, identity: Identity
    ) -> BrokerCore:
        core = BrokerCore(
            settings=self.settings,
            store=self.store,
            events=events,
            identity=identity,
            stats=self.stats,
            loop=loop,
            live_settings=self._live_settings,
            turns=turns,
            form=self.form,
            further={
                **dict.fromkeys((RequestCode.DRAIN, RequestCode.DRAIN_STATUS), self._drain_request),
                **dict.fromkeys(_OVERVIEW, self._serve_overview),
            },
        )
        self._save_last = core.save_last
        self._undo.append(("broker core", core.close))
        return core

    def _read_certificates(self, settings: Settings) -> None:
        """Read the certificates that the ports show, and the context for name servers. Raises
        ConfigError."""
        self._certificates = server_certificates(settings)
        self._outgoing = registration_context(settings)

    async def _start_name_server(self) -> NameServer | None:
        settings = self.settings
        own = self._credentials = credentials_of(settings)
        if not settings.nameserver_enabled:
            return None
        server = NameServer.from_settings(settings, self._encryption, own)
        await server.start()
        self._undo.append(("name server", server.close))
        if server.access is not None:
            self._note_accounts("name server accounts", server.access)
        return server

    async def _start_client_ports(self, port: int) -> int:
        settings, limits, core = self.settings, self._limits, self.core
        sockets = None if core.compiled is None else core.compiled.sockets
        server = partial(RemotingServer, turns=core.turns, encryption=self._encryption)
        self.main_server = server(core.main_router, limits, "broker", sockets=sockets)
        self.vip_server = server(core.vip_router, limits, "broker vip")
        self.admin_server = server(core.admin_router, limits, "broker admin")
        self._undo.append(("client ports", self._close_client_ports))
        await self.main_server.start(settings.listen_host, port)
        if settings.admin_port:
            await self.admin_server.start(settings.admin_host, settings.admin_port)
        if not settings.vip_port_enabled:
            return 0
        return await self.vip_server.start(settings.listen_host, port - VIP_BELOW)

    async def _start_ha_port(self) -> int:
        """Open the port for slaves; returns it, 0 where it stays closed."""
        replication, settings = self.core.replication, self.settings
        if replication is None:
            return 0
        self._undo.append(("replication", replication.close))
        return await replication.port.start(
            settings.listen_host, settings.ha_listen_port, self._encryption
        )

    async def _ask_slaves(self, servers: Sequence[str], endpoint: str) -> None:
        """Take the offsets that consumers have committed at the slaves of this master while it was
        away. A name server inside this process has just begun, and knows none."""
        settings, core = self.settings, self.core
        if core.role.is_slave or not settings.replicates or not servers:
            return
        # The import brings a module that most brokers do not need.
        from aerobee.broker.cluster.comparison.comparing import is_copy
        from aerobee.broker.cluster.table_copies.slave_offsets import Asking, take_from_slaves

        has_this_log = partial(is_copy, store=self.store)
        asking = Asking(
            settings.broker_name, endpoint, has_this_log, self._outgoing, self._credentials
        )
        await take_from_slaves(asking, servers, core.offsets, self.store.max_offset)

    def _follow(self) -> None:
        """Follow the master, on a slave."""
        if not self.settings.starts_as_slave:
            return
        # The import brings modules that no master needs.
        from aerobee.broker.cluster.replication.finding import MasterFinder
        from aerobee.broker.cluster.table_copies.master_calls import MasterCalls

        master, tls, keys = self.registrar.master, self._outgoing, self._credentials
        own = self.addresses.broker, self.addresses.vip
        ask = self.registrar.ask_for_master
        finder = MasterFinder(
            self.settings, master, self.store, own, ask, tls=tls, credentials=keys
        )
        self.core.follow(finder, tls, MasterCalls(master, tls=tls, credentials=keys))
        replication = self.core.replication
        assert replication is not None
        self._undo.append(("following", replication.stop_following))
        self.health.note(
            "tables of the master",
            lambda: None if replication.tables is None else replication.tables.problem,
            "the reason says what is in the way; with accounts a slave needs an administrator's in "
            "conf/tools.yml (aclToolsFile). Consumers that go over to this slave may get messages "
            "again that they have had",
        )

    async def _close_client_ports(self) -> None:
        """Accept no more connections, answer the waiting requests, then end the connections."""
        servers = self._servers.values()
        for server in servers:
            await server.stop_listening()
        self.core.held.release_all()
        await self.core.answers.wait_empty(_DRAIN_S)
        await self.core.save_tables()
        for server in servers:
            await server.close()

    @property
    def _servers(self) -> dict[str, RemotingServer]:
        """The servers of the ports for clients and administrators, by their names in metrics."""
        servers = {"broker": self.main_server, "vip": self.vip_server}
        return {**servers, "admin": self.admin_server} if self.settings.admin_port else servers

    async def _leave_name_servers(self) -> None:
        await self.registrar.stop(returns=self._returns)

    def _note_what_is_odd(self) -> None:
        """Notes that stand until a person has done something."""
        self.health.note(
            "tables are whole",
            aside_probe((self.core.directory.path, os.path.dirname(self.settings.kv_file))),
            "what only those files held is not served; restore it if it is needed, then move the "
            "files away",
        )
        self.health.note(
            "its name is its own",
            self.registrar.namesake_problem,
            "stop one of the two, or give it a name or an id of its own; the note goes with the "
            "next registration",
        )

    def _note_audit(self) -> None:
        self.health.note(
            "audit",
            self.core.audit_problem,
            "give the disk of the store room, or repair what the reason names; changes of "
            "administrators are refused until then",
        )

    def _note_replication(self) -> None:
        health, settings, core = self.health, self.settings, self.core
        if core.replication is not None:
            first = lambda: self.store.min_log_offset  # noqa: E731 - asked each time
            note_replication(health, settings, core.role, core.replication, first)

    def _check_registration(self) -> None:
        self.health.add(
            "registered",
            registered_probe(self.registrar),
            "check that the name servers run and that namesrvAddr names them; one that asks for "
            "accounts wants an administrator's in conf/tools.yml (aclToolsFile), read at the start",
        )
        self.health.add(
            "draining",
            lambda: None if self._drain is None else self._drain.problem(),
            "stop the broker once its producers have left, or have them back: aerobee broker drain "
            "NAME --undo --yes",
        )

    def _start_checks(self, scheduler: Scheduler, monitor: LoopMonitor) -> None:
        settings = self.settings
        self.health.add(
            "store",
            self.store.not_writable_reason,
            "the reason says which file or disk; a full disk needs room, a failed one a restart",
        )
        self._check_registration()
        self.health.add(
            "disk",
            disk_probe(
                self.store.log_directories,
                self.store.queue_directory,
                settings.disk_warning_ratio,
                is_slave=lambda: self.core.role.is_slave,
            ),
            "free space, or lower fileReservedTime; aerobee store retention says what would go",
        )
        self.health.add(
            "tables",
            saving_probe(self.core.directory, self.core.table_failures),
            "give that disk room, or repair what the reason names; what clients commit meanwhile "
            "is served, but a restart would forget it. Topics and groups that cannot be kept are "
            "refused. It passes by itself",
        )
        self._note_what_is_odd()
        self._note_audit()
        self._note_replication()
        if self.core.access is not None:
            self._note_accounts("accounts", self.core.access)
        if (certificates := self._certificates) is not None:
            # The earlier certificate stays in use: to take the broker out of service would help
            # nobody.
            self.health.note(
                "certificates",
                certificates.probe,
                "repair the file that the reason names; it is read again when it changes",
            )
            self.health.note(
                "certificate holds",
                certificates.probe_expiry,
                "put a new one in its place; files are read again when they change",
            )
            scheduler.every(1.0, "certificates", certificates.look, blocking=True)
        scheduler.every(1.0, "health", self.health.run)
        scheduler.every(_GROWTH_S, "growth", self._sample_growth, first_s=1.0)
        self._supervision.start(scheduler, self.store, monitor)

    def _tell_exposures(self, warnings: tuple[str, ...]) -> None:
        """Report the parts that are open to strangers: at the start, besides these warnings, in
        readiness and in metrics."""
        found = exposures(self.settings)
        for text in found:
            log.warning("%s", text)
        self.warnings += (*warnings, *found)
        said = "; ".join(found) or None
        self.health.note("closed to strangers", lambda: said, "docs/security.md says how")

    def _note_accounts(self, name: str, access: AccessService) -> None:
        self.health.note(
            f"{name} not for everybody",
            lambda: access.control.rules.open_to_all,
            "take that address out of the file, or write down those that are meant",
        )
        self.health.note(
            name,
            lambda: access.problem,
            "the accounts before stay in force; aerobee acl check FILE says what is wrong",
        )

    def _settings_changed(self) -> None:
        self.core.settings_changed()

    async def _close_store(self) -> None:
        # To close is to flush; on another thread, so that the loop goes on to answer probes.
        store = self.store
        broken = store.not_writable_reason()
        if not await asyncio.get_running_loop().run_in_executor(None, store.close, self._save_last):
            raise StoreError(
                f"the store in {self.settings.store_path} could not bring everything to the disk "
                f"and will be recovered at the next start: {broken or 'see the log'}"
            )


def _admin_address(settings: Settings) -> str:
    """The address of the administrators' port; "" without one."""
    where = settings.admin_host, settings.admin_port
    return address_text(where) if settings.admin_port else ""


def credentials_of(settings: Settings) -> Credentials | None:
    """The credentials that sign the broker's registrations: those of its file; without a file, if
    it embeds a name server that asks for accounts, some that nobody else ever knows. Raises
    ConfigError for a file that cannot be read."""
    named = settings.credentials_file
    path = Path(settings.rocketmq_home) / named if named else tools_file(settings.rocketmq_home)
    draws = settings.nameserver_enabled and settings.nameserver_acl_enabled
    if path is None and not draws:
        return None
    # The import brings the library for YAML.
    from aerobee.access.files.credentials import Credentials

    if path is None:
        return Credentials(f"aerobee-{secrets.token_hex(8)}", secrets.token_hex(32))
    try:
        return Credentials.read(path)
    except AccountFileError as error:
        raise ConfigError("aclToolsFile", str(path), str(error)) from None


def _refusals() -> RefusalMemory:
    # The import brings a module that a broker without refusals does without.
    from aerobee.broker.monitoring.overview.refusals import Refusals

    return Refusals()


def _form() -> CompiledForm | None:
    try:
        return chosen()
    except NativeError as error:
        # The text names the variable and its value.
        raise ConfigError("", "", str(error)) from None


def remoting_limits(settings: Settings, connections: int) -> RemotingLimits:
    """The limits of the client ports, in the form of the connection layer."""
    return RemotingLimits(
        frame_bytes=settings.max_frame_bytes,
        header_bytes=settings.max_header_bytes,
        connections=connections,
        connections_per_address=min(settings.connections_per_address, connections),
        idle_s=float(settings.idle_seconds),
        frame_grace_s=float(settings.frame_base_seconds),
        frame_bytes_per_s=settings.frame_bytes_per_second,
        inbound_total_bytes=settings.inbound_bytes,
        outbound_high_water_bytes=settings.outbound_high_water_bytes,
        outbound_connection_bytes=settings.outbound_bytes_per_connection,
        outbound_total_bytes=settings.outbound_bytes,
        pending_calls=settings.calls_per_connection,
    )
