"""The daemon as a process: loop, signals, output, exit codes.

SIGTERM and SIGINT stop the daemon in order; a recovery that is under way is finished first. If
other brokers take its topics, SIGTERM first lets producers go to them (`drain.py`), and a second
signal skips that; a shard does not, as its supervisor stops all of them. The signal after that ends
it at once, and the next start recovers as after a crash. SIGHUP has the
configuration read again (`config/loading/reload.py`); if it comes during the start, this is done
after the start. If the terminal from which the daemon was started is gone, SIGHUP stops the daemon
in order (`config/loading/hangup.py`). Our own supervisor sends SIGUSR2: the daemon stops in order
and is started again at once (`shards/supervisor.py`). `faulthandler` is on, so that a fault in
mapped memory names its place in the log.

Exit codes: 0 stopped in order, 1 could not start or did not stop cleanly, 3 a port is in use,
78 the configuration is wrong (sysexits EX_CONFIG; systemd does not restart on it).
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from aerobee import __version__
from aerobee.broker.cluster.registration.broker_address import AddressError
from aerobee.broker.lifecycle.daemon import Daemon, StartAbandoned
from aerobee.broker.monitoring.systemd import Notifier
from aerobee.broker.tables.files.state_file import StateFileError
from aerobee.config.errors import ConfigError
from aerobee.config.loading.hangup import HANGUPS, heed_supervisor
from aerobee.config.loading.load import Loaded
from aerobee.config.loading.reload import Load, Reload
from aerobee.config.logs import announce
from aerobee.config.model import Settings
from aerobee.config.setting_rules import is_master_address
from aerobee.native.form import form_name
from aerobee.printable import printable
from aerobee.remoting.errors import RemotingListenError
from aerobee.store.errors import StoreError

log = logging.getLogger("aerobee.daemon")

EXIT_FAILED = 1
EXIT_PORT_IN_USE = 3
EXIT_CONFIG = 78
# The last generation: its collections look at everything.
_OLDEST = 2
_SWITCH_S = 0.001


def run(loaded: Loaded, load: Load, *, supervised: bool = False) -> int:
    """Run the daemon until a signal stops it; returns the process's exit code.

    `load` reads the configuration again, from the same sources as `loaded`. `supervised`: it also
    stops when standard input ends (`heed_supervisor`).
    """
    faulthandler.enable()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(loaded, load, supervised))


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed: 10-20 % more requests a second, never required."""
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop


async def _serve(loaded: Loaded, load: Load, supervised: bool) -> int:
    notifier = Notifier(os.environ)
    daemon = Daemon(loaded.settings, notifier, Reload(loaded.settings, load))
    stop = _Stop()
    loop = asyncio.get_running_loop()
    hung_up = _on_signals(loop, stop, daemon, supervised)
    if supervised:
        heed_supervisor(loop, hung_up)
    reload_asked = asyncio.Event()
    with HANGUPS.heard(loop.call_soon_threadsafe, reload_asked.set, hung_up):
        code = await _start(daemon)
        if code is not None:
            return code
        _be_prompt()
        reloading = loop.create_task(_reload_forever(daemon, reload_asked, notifier))
        _say_ready(daemon, notifier)
        await stop.asked.wait()
        reloading.cancel()
        await stop.drain(daemon)
        return await _stop(daemon)


class _Stop:
    """The wish to stop: `asked`, and whether producers are let go first."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._drains = False
        self._skipped = asyncio.Event()

    def ask(self, *, drains: bool) -> None:
        """Ask for it, the first time."""
        self._drains = drains
        self.asked.set()

    def skip_drain(self) -> bool:
        """Stop without further ado; False if there is no drain to be skipped."""
        if not self._drains or self._skipped.is_set():
            return False
        self._skipped.set()
        return True

    async def drain(self, daemon: Daemon) -> None:
        """Let the producers go, unless that is not wanted or skipped."""
        if self._drains:
            waiting = asyncio.ensure_future(daemon.let_producers_go())
            skipped = asyncio.ensure_future(self._skipped.wait())
            await asyncio.wait((waiting, skipped), return_when=asyncio.FIRST_COMPLETED)
            self._drains = False
            for one in (waiting, skipped):
                one.cancel()
            (found, _) = await asyncio.gather(waiting, skipped, return_exceptions=True)
            if isinstance(found, Exception):  # a bug; the stop goes on all the same
                log.error("the drain has failed", exc_info=found)


def _be_prompt() -> None:
    """Keep the pauses short that Python itself puts into the loop's work.

    The collector no longer looks at objects that the start has loaded, or that a full collection
    has found alive (`gc.freeze`): with hundreds of thousands of table entries a collection would
    stop everything for 100 ms. A frozen object is still freed when nothing refers to it any more,
    and the broker makes no reference cycles of long-lived objects (a test checks this for a closed
    connection). The switch interval is 1 ms instead of 5, so a worker thread that reads a large
    body lets the loop go on sooner."""
    gc.freeze()
    gc.callbacks.append(_freeze_what_stays)
    sys.setswitchinterval(_SWITCH_S)


def _freeze_what_stays(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()


def _say_ready(daemon: Daemon, notifier: Notifier) -> None:
    seconds = process_age_s()
    settings, addresses = daemon.settings, daemon.addresses
    announce(
        banner(daemon, seconds),
        "aerobee.daemon",
        '%s seconds=%.2f version=%s broker=%s cluster=%s flush=%s address=%s vip="%s" '
        'administrators="%s" slaves="%s" name_servers="%s" registered=%s http="%s" store="%s" '
        'form=%s recovery="%s" warnings="%s"',
        "ready" if _registered(daemon) else "serving, not registered",
        seconds,
        __version__,
        settings.broker_name,
        settings.cluster_name,
        settings.flush_disk_type,
        addresses.broker,
        addresses.vip,
        addresses.admin,
        addresses.slaves,
        ";".join(addresses.name_servers),
        _registered(daemon),
        addresses.http,
        settings.store_path,
        form_name(daemon.form),
        daemon.store.recovery.summary().replace('"', "'"),
        "; ".join(daemon.warnings).replace('"', "'"),
    )
    notifier.ready(f"{_state(daemon)} at {daemon.addresses.broker}")


async def _stop(daemon: Daemon) -> int:
    log.info("stopping")
    try:
        await daemon.stop()
    except ExceptionGroup as errors:
        text = printable(f"aerobee: not stopped cleanly: {errors.exceptions[0]}")
        print(text, file=sys.stderr)
        return EXIT_FAILED
    log.info("stopped")
    return 0


async def _reload_forever(daemon: Daemon, asked: asyncio.Event, notifier: Notifier) -> None:
    while True:
        await asked.wait()
        asked.clear()
        notifier.reloading()
        try:
            await daemon.read_settings_again()
        except Exception:  # the top of this task: the next SIGHUP is heeded all the same
            log.exception("reading the configuration again failed")
        notifier.ready()


async def _start(daemon: Daemon) -> int | None:
    """Start; an exit code when that failed, None when it runs."""
    try:
        await daemon.start()
    except StartAbandoned:
        log.info("stopped before it was ready")
        return 0
    except RemotingListenError as error:
        return _exit_with(error, EXIT_PORT_IN_USE)
    except (AddressError, ConfigError) as error:
        return _exit_with(error, EXIT_CONFIG)
    except (StoreError, StateFileError, OSError) as error:
        return _exit_with(error, EXIT_FAILED)
    return None


def _exit_with(error: Exception, code: int) -> int:
    print(printable(f"aerobee: cannot start: {error}", keep="\n"), file=sys.stderr, flush=True)
    return code


def _on_signals(
    loop: asyncio.AbstractEventLoop, stop: _Stop, daemon: Daemon, supervised: bool
) -> Callable[[], None]:
    """Have signals stop the daemon; returns the function to call when the terminal is gone."""

    def stop_asked(number: signal.Signals) -> None:
        if stop.asked.is_set() and stop.skip_drain():
            log.info("second %s, the drain is skipped", number.name)
            return
        if stop.asked.is_set():
            # This is a further signal: leave now. Acknowledged messages are in the files; `abort`
            # stays.
            print(f"aerobee: {number.name} again, leaving at once", file=sys.stderr, flush=True)
            os._exit(128 + number)
        # A person who stops a broker at its terminal wants it stopped now.
        stop.ask(drains=number == signal.SIGTERM and daemon.serving and not supervised)
        if not daemon.serving:
            log.warning(
                "%s while starting: will stop when the recovery is finished; "
                "a second signal leaves at once",
                number.name,
            )
            daemon.abandon_start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_asked, number)

    def restart_asked() -> None:
        daemon.will_return()
        stop_asked(signal.SIGUSR2)

    if supervised:
        loop.add_signal_handler(signal.SIGUSR2, restart_asked)

    def hung_up() -> None:
        # The kernel and the shell both send the signal, so a second SIGHUP is no reason to leave at
        # once.
        if not stop.asked.is_set():
            log.info("the terminal was closed, or the supervisor is gone")
            stop_asked(signal.SIGHUP)

    return hung_up


def process_age_s() -> float:
    """Seconds since this process was started, its imports included (proc(5), `starttime`)."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
            # The fields begin after the program's name, which may hold blanks and brackets.
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return time.process_time()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def banner(daemon: Daemon, seconds: float) -> list[str]:
    """The lines that the daemon prints at its start: its names, its addresses for clients, its
    store."""
    settings, addresses = daemon.settings, daemon.addresses
    lines = [
        f"aerobee {__version__}  broker {settings.broker_name}  cluster {settings.cluster_name}  "
        f"{settings.flush_disk_type}",
        f"  clients are told  {addresses.broker}",
    ]
    if addresses.vip:
        lines.append(f"  vip port          {addresses.vip}")
    if addresses.admin:
        lines.append(f"  administrators    {addresses.admin}")
    if addresses.slaves:
        lines += _of_replication(settings, addresses.slaves)
    if addresses.name_servers:
        registered = daemon.registrar.registered
        listed = [
            server + ("" if registered.get(server) else " (not registered yet)")
            for server in addresses.name_servers
        ]
        lines.append(f"  name servers      {'; '.join(listed)}")
    if addresses.http:
        scheme = "https" if settings.tls_mode == "enforcing" else "http"
        lines.append(f"  metrics, health   {scheme}://{addresses.http}/metrics /live /ready")
    lines.append(f"  store             {settings.store_path}")
    lines.append(f"  hot path          {form_name(daemon.form)}")
    lines.append(f"  recovery          {daemon.store.recovery.summary()}")
    lines += [f"  warning           {warning}" for warning in daemon.warnings]
    if _registered(daemon):
        lines.append(f"ready in {seconds:.2f} s")
    else:
        lines += [f"  warning           {text}" for text in _unregistered(daemon.settings)]
        lines.append(f"{_state(daemon)} after {seconds:.2f} s")
    return lines


def _of_replication(settings: Settings, slaves: str) -> list[str]:
    """The lines of a broker that has a port for slaves, which others reach at `slaves`."""
    role = f"{settings.broker_role}, brokerId {settings.broker_id}"
    if settings.starts_as_slave:
        given = settings.ha_master_address
        master = f"at {given}" if is_master_address(given) else "that the name servers know"
        role += f", of the master {master}"
    return [f"  role              {role}", f"  port for slaves   {slaves}"]


def _registered(daemon: Daemon) -> bool:
    """Whether clients can find the broker; without any name server they know its address."""
    registered = daemon.registrar.registered
    return not registered or any(registered.values())


def _state(daemon: Daemon) -> str:
    return "ready" if _registered(daemon) else "serving, not registered,"


def _unregistered(settings: Settings) -> list[str]:
    """The reasons why clients cannot find the broker, and the remedy."""
    lines = [
        "no name server has accepted the registration, so clients cannot find this broker "
        "(it goes on trying)"
    ]
    if settings.name_servers and not settings.nameserver_enabled:
        lines.append(
            "the embedded name server is off because namesrvAddr (broker.name_servers) is "
            f"{settings.name_servers}: start one there (aerobee nameserver), or remove namesrvAddr "
            "to use the embedded one"
        )
    return lines
