"""The supervisor as a process: checks before it starts anything, signals, exit codes.

SIGTERM and SIGINT stop all in order, a second such signal stops all at once; SIGHUP has each
process read its configuration again; SIGUSR2 restarts them in turn. It is a signal because then the
system decides who may restart brokers, with systemd too (`systemctl kill --kill-whom=main -s
SIGUSR2 aerobee`); no request to the HTTP port changes anything. Other servers with workers also
restart at SIGUSR2.

Exit codes are those of a broker (broker/lifecycle/broker_process.py). A start that fails passes on
its shard's.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from aerobee import __version__
from aerobee.broker.background.scheduler import Scheduler
from aerobee.broker.cluster.registration.broker_address import decide_advertised
from aerobee.broker.cluster.registration.name_server_link import parse_server
from aerobee.broker.cluster.registration.namesake import ask_brokers
from aerobee.broker.lifecycle.free_ports import check_ports_free
from aerobee.broker.monitoring.http import HttpLimits, HttpServer
from aerobee.broker.monitoring.systemd import Notifier
from aerobee.config.errors import ConfigError
from aerobee.config.loading.hangup import HANGUPS
from aerobee.config.logs import announce
from aerobee.config.model import Settings
from aerobee.config.ports import check_clashes, reachable
from aerobee.config.tls.certificates import (
    outgoing_context,
    registration_context,
    server_certificates,
)
from aerobee.printable import printable
from aerobee.remoting.calling.caller import Caller
from aerobee.remoting.errors import RemotingError, RemotingListenError
from aerobee.shards.child import Child, Keeper
from aerobee.shards.pages import Pages, ShardPlace
from aerobee.shards.shard_layout import check_layout
from aerobee.shards.shard_plan import (
    all_listeners,
    check_plan,
    name_server_address,
    name_server_options,
    shard_changes,
)
from aerobee.shards.supervisor import Supervisor
from aerobee.store.disk.files import Files
from aerobee.store.disk.lock import StoreLock
from aerobee.store.errors import StoreError

log = logging.getLogger("aerobee.shards")

_EXIT_FAILED = 1
_EXIT_PORT_IN_USE = 3
_CONNECT_S = 1.0
# The safe path: never import from the directory in which somebody happens to be.
_PROGRAM = (sys.executable, "-P", "-m", "aerobee.cli")


def run(settings: Settings, count: int, serve: Sequence[str], nameserver: Sequence[str]) -> int:
    """Run `count` shards until a signal stops them; returns the exit code.

    `settings` are those of one broker. `serve` and `nameserver` are the arguments with which the
    processes read the same: a shard gets its number after them. Raises ConfigError.
    """
    check_plan(settings, count)
    check_layout(settings, count)
    directory = tempfile.mkdtemp(prefix="aerobee-shards-")
    try:
        return asyncio.run(_Process(settings, count, serve, nameserver, directory).run())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Process:
    """The supervisor's process: makes children, and knows their places."""

    def __init__(
        self,
        settings: Settings,
        count: int,
        serve: Sequence[str],
        nameserver: Sequence[str],
        directory: str,
    ) -> None:
        self._settings = settings
        self._shards = [
            settings.with_changes(**shard_changes(settings, number, count, None))
            for number in range(count)
        ]
        self._serve = serve
        self._nameserver = nameserver
        self._directory = directory
        self._began = time.monotonic()
        # Read before anything runs, so that files that cannot be used stop the start here.
        self._certificates = server_certificates(settings)
        # For connections to our own processes.
        self._name_server_tls = registration_context(settings)
        enforcing = settings.tls_mode == "enforcing"
        self._http_tls = outgoing_context(settings) if enforcing else None

    async def run(self) -> int:
        settings, shards = self._settings, self._shards
        try:
            supervisor = Supervisor(
                notifier=Notifier(os.environ),
                processes=self,
                shards=len(shards),
                with_name_server=bool(name_server_address(settings)),
                restart_pause_s=settings.shards_restart_pause_ms / 1000,
            )
        except OSError as error:  # the path of a socket may be too long
            return _exit_with(error, _EXIT_FAILED)
        loop = asyncio.get_running_loop()
        stop = _on_signals(loop, supervisor)
        scheduler = Scheduler(loop)
        if (certificates := self._certificates) is not None:
            scheduler.every(1.0, "certificates", certificates.look, blocking=True)
        with HANGUPS.heard(loop.call_soon_threadsafe, supervisor.reload, stop):
            try:
                await _check_free(settings, shards)
                http = await self._start_http(supervisor)
            except RemotingListenError as error:
                return _exit_with(error, _EXIT_PORT_IN_USE)
            except ConfigError as error:
                return _exit_with(error, ConfigError.EXIT_CODE)
            except (StoreError, OSError) as error:
                return _exit_with(error, _EXIT_FAILED)
            try:
                return await supervisor.run(self._say_ready)
            finally:
                await scheduler.stop()
                if http is not None:
                    await http.close()

    def make_child(self, name: str, keeper: Keeper) -> Child:
        """The name server beside the shards, or a shard."""
        if name == "nameserver":
            arguments = [*self._nameserver, *name_server_options(self._settings)]
        else:
            arguments = [*self._serve, "--as-shard", name.removeprefix("shard-")]
        command = [*_PROGRAM, *arguments]
        return Child(name, command, os.environ, self._directory, keeper)

    async def ask_missing(self) -> set[str]:
        """Names of our brokers that the name server beside them does not know."""
        names = {shard.broker_name for shard in self._shards}
        host, port = parse_server(name_server_address(self._settings))
        try:
            tls = self._name_server_tls
            caller = await Caller.connect(host, port, _CONNECT_S, tls=tls)
            try:
                return names - (await ask_brokers(caller)).keys()
            finally:
                caller.close()
        except RemotingError as error:
            log.info("the name server does not answer why=%s", error)
            return names

    async def _start_http(self, supervisor: Supervisor) -> HttpServer | None:
        settings = self._settings
        if not settings.http_enabled or not settings.http_port:
            return None
        host = decide_advertised(settings.advertised_host, settings.listen_host).host
        places = [
            ShardPlace(
                shard.broker_name,
                f"{host}:{shard.listen_port}",
                reachable(shard.http_host),
                shard.http_port,
                self._http_tls,
            )
            for shard in self._shards
        ]
        limits = HttpLimits(connections=settings.http_connections)
        routes = Pages(supervisor, places).routes()
        encryption = None if self._certificates is None else self._certificates.http
        server = HttpServer(settings.http_host, settings.http_port, routes, limits, encryption)
        await server.start()
        return server

    def _say_ready(self) -> None:
        settings = self._settings
        names = ", ".join(shard.broker_name for shard in self._shards)
        lines = [f"aerobee {__version__}  {len(self._shards)} shards: {names}"]
        if address := name_server_address(settings):
            lines.append(f"  name server       {address}")
        if settings.http_enabled and settings.http_port:
            scheme = "https" if settings.tls_mode == "enforcing" else "http"
            where = f"{scheme}://{settings.http_host}:{settings.http_port}"
            lines.append(f"  metrics, health   {where}/metrics /live /ready /shards")
        lines.append(f"  restart each      kill -USR2 {os.getpid()}")
        seconds = time.monotonic() - self._began
        lines.append(f"all ready in {seconds:.2f} s")
        event = 'all ready seconds=%.2f version=%s shards=%d brokers="%s" name_server="%s"'
        fields = seconds, __version__, len(self._shards), names, name_server_address(settings)
        announce(lines, log.name, event, *fields)


async def _check_free(settings: Settings, shards: Sequence[Settings]) -> None:
    """Raise ConfigError, StoreError or RemotingListenError if anything of a shard is not free."""
    wanted = all_listeners(settings, shards)
    check_clashes(wanted)
    for shard in shards:
        StoreLock(Files(), shard.store_path).probe()
    await check_ports_free(wanted)


def _on_signals(loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> Callable[[], None]:
    """Have signals reach the supervisor; returns the function for a terminal that is gone."""
    asked: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        asked.append(number)
        if len(asked) == 1:
            log.info("stopping")
            supervisor.stop()
        else:
            log.warning("second %s, all leave at once", number.name)
            supervisor.stop_at_once()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGUSR2, supervisor.restart_one_by_one)

    def hung_up() -> None:
        if not asked:
            log.info("the terminal was closed")
            stop(signal.SIGHUP)

    return hung_up


def _exit_with(error: Exception, code: int) -> int:
    print(printable(f"aerobee: cannot start: {error}", keep="\n"), file=sys.stderr, flush=True)
    return code
