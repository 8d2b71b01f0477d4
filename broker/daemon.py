"""The daemon: builds everything, starts it in order, stops it in reverse.

Start: HTTP (so that probes see the recovery), store (lock, recovery, in a thread), broker core,
embedded name server, client ports, first registration, READY. Stop: no more connections, leave the
name servers, close the client ports, answer held pulls, save offsets, close the store, HTTP last.

One event loop thread runs everything but the store's flush and allocation threads. What fails while
starting is undone in reverse and raised; the command line turns it into one line and an exit code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aerobee.broker.core import BrokerCore, Identity
from aerobee.broker.free_ports import ReservedPorts
from aerobee.broker.housekeeping import Housekeeping
from aerobee.broker.metrics_setup import add_broker, add_http, add_network, metrics_of_process
from aerobee.broker.monitoring.health import (
    Health,
    disk_probe,
    health_routes,
    registered_probe,
    store_probe,
)
from aerobee.broker.monitoring.http import HttpLimits, HttpServer
from aerobee.broker.monitoring.loop_monitor import LoopMonitor
from aerobee.broker.monitoring.notify import Notifier
from aerobee.broker.monitoring.supervision import Supervision
from aerobee.broker.registration.addresses import decide_advertised
from aerobee.broker.registration.registration import Registrar
from aerobee.broker.stats import BrokerStats
from aerobee.config.limits import Limits
from aerobee.config.model import Settings
from aerobee.config.ports import VIP_BELOW, check_ports
from aerobee.nameserver.server import NameServer
from aerobee.remoting.limits import RemotingLimits
from aerobee.remoting.server import RemotingServer
from aerobee.store.disk.files import Files
from aerobee.store.disk.lock import StoreLock
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore

log = logging.getLogger("aerobee.daemon")

# At stop, sends that wait for their sync get this long: many times what a healthy sync takes.
_DRAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """What clients are told and where the parts listen; empty text for a part that is off."""

    broker: str
    vip: str
    name_server: str
    name_servers: tuple[str, ...]
    http: str


class StartAbandoned(Exception):
    """The daemon was asked to stop before it was ready; what had been started is undone."""


class Daemon:
    """One broker process. `start` once, `stop` once; both on the loop that runs it."""

    def __init__(self, settings: Settings, notifier: Notifier | None = None) -> None:
        self.settings = settings
        self.stats = BrokerStats()
        self.health = Health()
        limits = Limits.of(settings)
        self._limits = remoting_limits(limits)
        self._notifier = notifier or Notifier({})
        self._supervision = Supervision(self._notifier, self.health)
        self._undo: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._serving = False
        self._stop_asked = False
        self._release_ports: Callable[[], None] = lambda: None
        self.health.add(
            "serving",
            lambda: None if self._serving else "the broker is starting or stopping",
            "wait; the log shows how far it is",
        )
        self.store: MessageStore
        self.core: BrokerCore
        self.registrar: Registrar | None = None
        self._name_server: NameServer | None = None
        self.addresses: Addresses
        self.warnings: tuple[str, ...] = limits.warnings

    async def start(self) -> None:
        """Start everything. What fails is undone and raised: `StoreError`, `RemotingListenError`,
        `AddressError`, `ConfigError` (two parts on one port), `StateFileError` or OSError, each
        with a text a person can act on. Raises `StartAbandoned` after `abandon_start`.
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
        """Let a `start` under way end at its next step. A recovery is one step: it is not broken
        off, because the next start would have to begin it anew.
        """
        self._stop_asked = True

    async def stop(self) -> None:
        """Stop what was started, in reverse; every step is tried even if one before it failed."""
        self._serving = False
        self._notifier.stopping("stopping")
        failures: list[Exception] = []
        while self._undo:
            what, undo = self._undo.pop()
            try:
                await undo()
            except Exception as error:
                log.exception("stop failed what=%s", what)
                failures.append(error)
        if failures:
            raise ExceptionGroup("the daemon did not stop cleanly", failures)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self.settings
        check_ports(settings)
        # Of two daemons on one directory the ports are in the way, too: this says more.
        StoreLock(Files(), settings.store_path).probe()
        self._housekeeping = Housekeeping(loop)
        self._undo.append(("timers", self._housekeeping.stop))
        self._loop_monitor = LoopMonitor(loop)
        self._loop_monitor.start()
        self._undo.append(("loop monitor", self._stop_loop_monitor))
        http = await self._start_http()
        advertised = decide_advertised(settings.advertised_host, settings.listen_host)
        self.warnings += advertised.warnings
        self.store = await self._open_store(loop)
        self._undo.append(("store", self._close_store))
        self._go_on()
        port = settings.listen_port or self._reserve_port()
        self.core = BrokerCore(settings, self.store, Identity(advertised, port), self.stats, loop)
        self._undo.append(("broker core", self._close_core))
        self.core.topics.report_lost(self.store.queues())
        add_broker(self._metrics, settings, self.store, self.core, self.stats)
        name_server = await self._start_name_server()
        vip = await self._start_client_ports(port)
        self._release_ports()
        await self._register(name_server)
        self.addresses = Addresses(
            advertised.endpoint(port),
            advertised.endpoint(vip) if vip else "",
            name_server,
            self._name_servers(name_server),
            http,
        )
        self.core.start_duties(self._housekeeping)
        self._start_watch()
        self._go_on()
        self._serving = True

    def _go_on(self) -> None:
        if self._stop_asked:
            raise StartAbandoned("asked to stop while starting")

    async def _start_http(self) -> str:
        settings, monitor = self.settings, self._loop_monitor
        self._metrics = metrics_of_process(settings, self.stats, self.health, monitor)
        if not settings.http_enabled or not settings.http_port:
            return ""
        routes = {
            **health_routes(self.health, monitor.stuck_s),
            "/metrics": self._metrics.route,
        }
        limits = HttpLimits(connections=settings.http_connections)
        server = HttpServer(settings.http_host, settings.http_port, routes, limits)
        await server.start()
        self._undo.append(("http", server.close))
        add_http(self._metrics, server)
        self._undo.append(("metrics", self._close_metrics))
        return f"{settings.http_host}:{server.port}"

    def _reserve_port(self) -> int:
        reserved = ReservedPorts(_reachable(self.settings.listen_host))
        self._release_ports = reserved.release
        self._undo.append(("reserved ports", self._give_ports_back))
        return reserved.port

    async def _give_ports_back(self) -> None:
        self._release_ports()

    async def _open_store(self, loop: asyncio.AbstractEventLoop) -> MessageStore:
        """Open and recover on a thread; the supervisor hears how far it is."""
        progress = self._supervision.begin_recovery(loop)
        store = await loop.run_in_executor(
            None, lambda: MessageStore.open(self.settings, progress=progress)
        )
        self._supervision.end_recovery()
        store.make_segment_ahead()
        return store

    async def _start_name_server(self) -> str:
        settings = self.settings
        if not settings.nameserver_enabled:
            return ""
        server = NameServer(settings.nameserver_host, settings.nameserver_port, settings.kv_file)
        await server.start()
        self._undo.append(("name server", server.close))
        self._name_server = server
        return f"{_reachable(settings.nameserver_host)}:{server.port}"

    async def _start_client_ports(self, port: int) -> int:
        settings, limits = self.settings, self._limits
        self.main_server = RemotingServer(self.core.main_router, limits, "broker")
        self.vip_server = RemotingServer(self.core.vip_router, limits, "broker vip")
        self._undo.append(("client ports", self._close_client_ports))
        await self.main_server.start(settings.listen_host, port)
        if not settings.vip_port_enabled:
            return 0
        return await self.vip_server.start(settings.listen_host, port - VIP_BELOW)

    async def _close_client_ports(self) -> None:
        """Admit nobody more, answer who waits, then end the connections."""
        await self.main_server.stop_listening()
        await self.vip_server.stop_listening()
        self.core.held.release_all()
        await self.core.acks.wait_empty(_DRAIN_S)
        await self.main_server.close()
        await self.vip_server.close()

    def _name_servers(self, embedded: str) -> tuple[str, ...]:
        return self.settings.name_server_list or ((embedded,) if embedded else ())

    async def _register(self, embedded: str) -> None:
        servers = self._name_servers(embedded)
        self.registrar = Registrar(self.settings, self.core, servers)
        self._undo.append(("registration", self.registrar.stop))
        self.core.topics.on_change = self.registrar.topics_changed
        add_network(
            self._metrics,
            {"broker": self.main_server.stats, "vip": self.vip_server.stats},
            self.registrar.registered,
            self._name_server,
        )
        await self.registrar.start()

    def _start_watch(self) -> None:
        settings = self.settings
        self.health.add(
            "store",
            store_probe(self.store),
            "the reason says which file or disk; a full disk needs room, a failed one a restart",
        )
        assert self.registrar is not None
        self.health.add(
            "registered",
            registered_probe(self.registrar.registered),
            "check that the name servers run and that namesrvAddr names them",
        )
        self.health.add(
            "disk",
            disk_probe(
                self.store.log_directories,
                self.store.queue_directory,
                settings.disk_warning_ratio,
            ),
            "free space, or lower fileReservedTime; aerobee store retention says what would go",
        )
        self._housekeeping.every(1.0, "health", self.health.look)
        store = self.store
        self._supervision.watch(self._housekeeping, store.threads_alive, store.stats_service.rates)

    async def _stop_loop_monitor(self) -> None:
        self._loop_monitor.stop()

    async def _close_metrics(self) -> None:
        self._metrics.close()

    async def _close_core(self) -> None:
        self.core.close()

    async def _close_store(self) -> None:
        # Closing flushes; on its own thread the loop goes on answering probes meanwhile.
        store = self.store
        broken = store.not_writable_reason()
        if not await asyncio.get_running_loop().run_in_executor(None, store.close):
            raise StoreError(
                f"the store in {self.settings.store_path} could not bring everything to the disk "
                f"and will be recovered at the next start: {broken or 'see the log'}"
            )


def remoting_limits(limits: Limits) -> RemotingLimits:
    """The limits of the client ports, as the connection layer takes them."""
    return RemotingLimits(
        frame_bytes=limits.frame_bytes,
        header_bytes=limits.header_bytes,
        connections=limits.connections,
        connections_per_address=limits.connections_per_address,
        idle_s=limits.idle_s,
        frame_grace_s=limits.frame_grace_s,
        frame_bytes_per_s=limits.frame_bytes_per_s,
        inbound_total_bytes=limits.inbound_total_bytes,
        outbound_high_water_bytes=limits.outbound_high_water_bytes,
        outbound_connection_bytes=limits.outbound_connection_bytes,
        outbound_total_bytes=limits.outbound_total_bytes,
        pending_calls=limits.pending_calls,
    )


def _reachable(host: str) -> str:
    """An address for our own connections to a part listening on `host`."""
    return "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
