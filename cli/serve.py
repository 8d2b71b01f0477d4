"""`aerobee serve` and `aerobee nameserver`: settings, logging, then the daemon until it ends."""

import argparse
import dataclasses
import logging
import shutil
import socket
import tempfile
from collections.abc import Callable

from aerobee.cli.configs import print_as_broker_conf
from aerobee.config.limits import raise_open_files
from aerobee.config.load import Loaded, load_settings
from aerobee.config.logs import Logging
from aerobee.config.model import Settings

log = logging.getLogger("aerobee.config")

_DEV_SEGMENT_BYTES = 64 * 1024 * 1024
_DEV_INDEX = {"index_slots": 100_000, "index_entries": 400_000}


def serve(parsed: argparse.Namespace) -> int:
    """Run the broker; the exit code is the daemon's."""
    loaded = _load(
        parsed,
        name_servers=parsed.name_servers,
        store_path=parsed.store,
        listen_host=parsed.host,
        listen_port=parsed.port,
        nameserver_port=parsed.nameserver_port,
        http_port=parsed.http_port,
    )
    if parsed.print_config or parsed.print_important:
        return print_as_broker_conf(loaded, important=not parsed.print_config)
    if not parsed.dev:
        return _run(loaded)
    directory = tempfile.mkdtemp(prefix="aerobee-dev-")
    try:
        return _run(_for_development(loaded, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def nameserver(parsed: argparse.Namespace) -> int:
    """Run a name server alone."""
    loaded = _load(parsed, nameserver_host=parsed.host)
    # Here port 0 is a free one: there is no other part that could run without this.
    if parsed.port is not None:
        settings = loaded.settings.with_changes(nameserver_port=parsed.port)
        loaded = dataclasses.replace(loaded, settings=settings)

    def run() -> int:
        from aerobee.cli.nameserver import run_name_server

        return run_name_server(loaded.settings)

    return _with_logging(loaded, run)


def _load(parsed: argparse.Namespace, **flags: object) -> Loaded:
    return load_settings(
        parsed.config,
        flags=flags,
        overrides=parsed.set,
        format=parsed.format,
        strict=parsed.strict,
    )


def _run(loaded: Loaded) -> int:
    def run() -> int:
        from aerobee.broker.process import run as run_daemon

        # Shells start processes with 1,024 open files, far below what systemd gives a service.
        raise_open_files(loaded.settings.connections + loaded.settings.reserved_files)
        return run_daemon(loaded)

    return _with_logging(loaded, run)


def _with_logging(loaded: Loaded, run: Callable[[], int]) -> int:
    settings = loaded.settings
    with Logging(settings.log_level, settings.log_format, queue_events=settings.log_queue_events):
        for warning in loaded.warnings:
            log.warning("%s", warning)
        for setting, value, origin in loaded.given():
            shown = "***" if setting.secret else value
            log.info('setting key=%s value="%s" from="%s"', setting.full_key, shown, origin.text)
        return run()


def _for_development(loaded: Loaded, directory: str) -> Loaded:
    """What nobody asked for otherwise: a store of its own, small, and ports nobody else has."""
    wanted: dict[str, object] = {
        "store_path": directory,
        "listen_port": 0,
        "commit_log_segment_bytes": _DEV_SEGMENT_BYTES,
        **_DEV_INDEX,
    }
    for name in ("nameserver_port", "http_port"):
        wanted[name] = _free_port(loaded.settings.listen_host)
    changes = {
        name: value for name, value in wanted.items() if loaded.origins[name].source == "default"
    }
    return dataclasses.replace(loaded, settings=_changed(loaded.settings, changes))


def _changed(settings: Settings, changes: dict[str, object]) -> Settings:
    return settings.with_changes(**changes)


def _free_port(host: str) -> int:
    """A port free now. Somebody may take it before the daemon does, which then says so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
