"""The name server as a process of its own: loop, signals, what it says."""

import asyncio
import logging
import signal
from pathlib import Path

from aerobee import __version__
from aerobee.cli.output import CANNOT_CONNECT, CONFIGURATION, CommandFailed, say
from aerobee.config.limits import Limits, raise_open_files
from aerobee.config.model import Settings
from aerobee.nameserver.kv import KvFileDamaged
from aerobee.nameserver.server import NameServer
from aerobee.remoting.errors import RemotingListenError

log = logging.getLogger("aerobee.nameserver")


def run_name_server(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    raise_open_files(settings.connections + settings.reserved_files)
    for warning in Limits.of(settings).warnings:
        log.warning("%s", warning)
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        server = NameServer(settings.nameserver_host, settings.nameserver_port, kv_path(settings))
        await server.start()
    except RemotingListenError as error:
        raise CommandFailed(f"cannot start: {error}", CANNOT_CONNECT) from error
    except (KvFileDamaged, OSError) as error:
        raise CommandFailed(f"cannot start: {error}", CONFIGURATION) from error
    host = settings.nameserver_host
    shown = f"[{host}]" if ":" in host else host
    say(f"aerobee {__version__}  name server at {shown}:{server.port}")
    say("ready")
    await stop.wait()
    await server.close()
    return 0


def kv_path(settings: Settings) -> Path:
    """File of the key-value table; below the store directory unless a path is set."""
    if settings.nameserver_kv_path:
        return Path(settings.nameserver_kv_path)
    return Path(settings.store_path) / "namesrv" / "kvConfig.json"
