"""`aerobee serve` and `aerobee nameserver`: settings, logging, then the daemon until it ends."""

import argparse
import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from aerobee import __version__
from aerobee.cli.configuration.settings import print_as_broker_conf
from aerobee.cli.imports import no_collections
from aerobee.cli.printing.output import CANNOT_CONNECT, CONFIGURATION, USAGE, CommandFailed
from aerobee.config.bounds.limits import check_limits, connection_limit, raise_open_files
from aerobee.config.bounds.memory import available_memory
from aerobee.config.loading.hangup import HANGUPS, heed_supervisor
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.loading.reload import Load, Reload
from aerobee.config.logs import Logging, announce
from aerobee.config.model import Settings
from aerobee.config.setting_rules import Origin
from aerobee.config.tls.certificates import ServerCertificates, server_certificates
from aerobee.remoting.errors import RemotingListenError
from aerobee.remoting.peers import address_text
from aerobee.shards.shard_layout import check_layout
from aerobee.shards.shard_plan import shard_changes

if TYPE_CHECKING:
    from aerobee.broker.monitoring.systemd import Notifier

log = logging.getLogger("aerobee.config")
names_log = logging.getLogger("aerobee.nameserver")

_DEV_SEGMENT_BYTES = 64 * 1024 * 1024
_DEV_INDEX = {"index_slots": 100_000, "index_entries": 400_000}
_NOT_OF_NAME_SERVERS = (
    "aclEnable is a broker's and says nothing here: a name server asks for accounts with "
    "namesrvAclEnable=true"
)


def serve(parsed: argparse.Namespace) -> int:
    """Run the broker; the exit code is the daemon's."""
    flags: dict[str, object] = {
        "name_servers": parsed.name_servers,
        "store_path": parsed.store,
        "listen_host": parsed.host,
        "listen_port": parsed.port,
        "nameserver_port": parsed.nameserver_port,
        "http_port": parsed.http_port,
    }

    def load(changes: Mapping[str, str] | None) -> Loaded:
        return _load(parsed, changes, {**flags, **_of_shard(parsed, flags)})

    # A store for development is gone with its broker, and so would be what requests have changed.
    supervises = _supervises(parsed)
    loaded = load(None if parsed.dev or supervises else {})
    if parsed.print_config or parsed.print_important:
        return print_as_broker_conf(loaded, important=not parsed.print_config)
    if supervises:
        return _run_shards(parsed, loaded)
    if not parsed.dev:
        if parsed.as_shard is None:
            check_layout(loaded.settings, 1)
        return _run(loaded, load, parsed.as_shard)
    import shutil
    import tempfile

    directory = tempfile.mkdtemp(prefix="aerobee-dev-")
    try:
        small = _for_development(loaded.settings, directory)
        return _run(_with_defaults(loaded, small), lambda _: _with_defaults(load(None), small))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _supervises(parsed: argparse.Namespace) -> bool:
    """Whether this process is the supervisor of several brokers."""
    if parsed.as_shard is not None:
        return False
    if parsed.shards > 1 and parsed.dev:
        raise CommandFailed("--dev runs one broker: leave out --shards, or give a --store", USAGE)
    return bool(parsed.shards > 1)


def _of_shard(parsed: argparse.Namespace, flags: Mapping[str, object]) -> dict[str, object]:
    """Settings that differ in this process because it is a shard."""
    if parsed.as_shard is None:
        return {}
    settings = _load(parsed, None, flags).settings
    return shard_changes(settings, parsed.as_shard, parsed.shards, available_memory())


def _run_shards(parsed: argparse.Namespace, loaded: Loaded) -> int:
    names = ["nameserver", "--supervised"]
    for option in ("config", "format"):
        if (value := getattr(parsed, option)) is not None:
            names += [f"--{option}", value]
    names += ["--strict"] if parsed.strict else []
    for setting in parsed.set:
        names += ["--set", setting]

    def run() -> int:
        with no_collections():
            from aerobee.shards.supervisor_process import run as run_shards

        return run_shards(loaded.settings, parsed.shards, parsed.arguments, names)

    return _with_logging(loaded, run, "supervisor")


def nameserver(parsed: argparse.Namespace) -> int:
    """Run a name server alone."""

    def load(_changes: Mapping[str, str]) -> Loaded:
        # The supervisor of shards gives it the file of the brokers.
        own = not parsed.supervised
        loaded = _load(parsed, None, {"nameserver_host": parsed.host}, name_server=own)
        # Here port 0 is a free one: there is no other part that could run without this.
        if parsed.port is None:
            return loaded
        settings = loaded.settings.with_changes(nameserver_port=parsed.port)
        flag = Origin("flag", "command line", "nameserver_port", "flag")
        origins = {**loaded.origins, "nameserver_port": flag}
        return loaded._replace(settings=settings, origins=origins)

    loaded = load({})
    part = "nameserver" if parsed.supervised else ""
    run = partial(_run_name_server, loaded.settings, load, supervised=parsed.supervised)
    return _with_logging(loaded, run, part)


def _run_name_server(settings: Settings, load: Load, *, supervised: bool) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    raise_open_files(settings.connections + settings.reserved_files)
    check_limits(settings)
    for warning in connection_limit(settings).warnings:
        names_log.warning("%s", warning)
    return asyncio.run(_serve_routes(settings, Reload(settings, load), supervised))


async def _serve_routes(settings: Settings, reload: Reload, supervised: bool) -> int:
    # This is not imported at the top, because the supervisor of shards has another process for it,
    # and shards do without.
    with no_collections():
        from aerobee.broker.background.scheduler import Scheduler
        from aerobee.broker.cluster.registration.exposure import name_server_exposure
        from aerobee.broker.monitoring.systemd import Notifier
        from aerobee.nameserver.server import NameServer

    notifier = Notifier()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    certificates = server_certificates(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if supervised:
        heed_supervisor(loop, stop.set)
    try:
        encryption = None if certificates is None else certificates.clients
        server = NameServer.from_settings(settings, encryption)
        await server.start()
    except RemotingListenError as error:
        raise CommandFailed(f"cannot start: {error} (--port N)", CANNOT_CONNECT) from error
    except OSError as error:
        raise CommandFailed(f"cannot start: {error}", CONFIGURATION) from error
    where = address_text((settings.nameserver_host, server.port))
    again = partial(_read_again, reload, notifier, certificates)
    scheduler = Scheduler(loop)
    if certificates is not None:
        scheduler.every(1.0, "certificates", certificates.look, blocking=True)
    with HANGUPS.heard(loop.call_soon_threadsafe, again, stop.set), _watched(notifier):
        warnings = [name_server_exposure(settings)]
        if settings.acl_enabled and not settings.nameserver_acl_enabled and not supervised:
            warnings.append(_NOT_OF_NAME_SERVERS)
        _say_ready(where, [text for text in warnings if text is not None])
        notifier.ready(f"ready at {where}")
        await stop.wait()
        notifier.stopping("stopping")
        await scheduler.stop()
        await server.close()
    return 0


def _say_ready(where: str, warnings: list[str]) -> None:
    lines = [f"aerobee {__version__}  name server at {where}"]
    lines += [f"  warning           {text}" for text in warnings]
    said = "; ".join(warnings).replace('"', "'")
    event = 'ready version=%s address=%s warnings="%s"'
    announce([*lines, "ready"], names_log.name, event, __version__, where, said)


@contextmanager
def _watched(notifier: "Notifier") -> Iterator[None]:
    """Report to the supervisor that the loop turns, if it asks for that."""
    interval_s = notifier.watchdog_interval_s
    if interval_s is None:
        yield
        return
    from aerobee.broker.monitoring.health_checks import LoopMonitor
    from aerobee.broker.monitoring.systemd import Watchdog

    monitor = LoopMonitor(asyncio.get_running_loop())
    monitor.start()
    watchdog = Watchdog(notifier, monitor)
    watchdog.start(interval_s)
    try:
        yield
    finally:
        watchdog.stop()
        monitor.stop()


def _read_again(
    reload: Reload, notifier: "Notifier", certificates: ServerCertificates | None
) -> None:
    notifier.reloading()
    if certificates is not None:
        certificates.read_again()
    loaded = reload.read()
    if loaded is not None:
        reload.take(loaded)
    notifier.ready()


def _load(
    parsed: argparse.Namespace,
    remote: Mapping[str, str] | None,
    flags: Mapping[str, object],
    *,
    name_server: bool = False,
) -> Loaded:
    return load_settings(
        parsed.config,
        flags=flags,
        overrides=parsed.set,
        format=parsed.format,
        strict=parsed.strict,
        remote=remote,
        name_server=name_server,
    )


def _run(loaded: Loaded, load: Load, shard: int | None = None) -> int:
    def run() -> int:
        with no_collections():
            from aerobee.broker.lifecycle.broker_process import run as run_daemon

        # Shells start processes with 1,024 open files, far below what systemd gives a service.
        raise_open_files(loaded.settings.connections + loaded.settings.reserved_files)
        return run_daemon(loaded, load, supervised=shard is not None)

    return _with_logging(loaded, run, "" if shard is None else f"shard-{shard}")


def _with_logging(loaded: Loaded, run: Callable[[], int], part: str = "") -> int:
    settings = loaded.settings
    queued = settings.log_queue_events
    with Logging(settings.log_level, settings.log_format, queue_events=queued, part=part):
        for warning in loaded.warnings:
            log.warning("%s", warning)
        for setting, value, origin in loaded.given():
            shown = "***" if setting.secret else value
            log.info('setting key=%s value="%s" from="%s"', setting.full_key, shown, origin.text)
        return run()


def _for_development(settings: Settings, directory: str) -> dict[str, Any]:
    """Settings for development: a small store of its own and free ports."""
    small: dict[str, Any] = {
        "store_path": directory,
        "listen_port": 0,
        "ha_listen_port": 0,
        "commit_log_segment_bytes": _DEV_SEGMENT_BYTES,
        **_DEV_INDEX,
    }
    for name in ("nameserver_port", "http_port"):
        small[name] = _free_port(settings.listen_host)
    return small


def _with_defaults(loaded: Loaded, defaults: Mapping[str, Any]) -> Loaded:
    """The settings with other values for those that are not given."""
    changes = {
        name: value for name, value in defaults.items() if loaded.origins[name].source == "default"
    }
    return loaded._replace(settings=loaded.settings.with_changes(**changes))


def _free_port(host: str) -> int:
    """A port free now. Somebody may take it before the daemon does, which then says so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
