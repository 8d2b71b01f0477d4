"""A broker daemon with fixed ports, which is killed and started again on the same store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.ports import free_port
from tests.service.kit import SMALL_STORE, aerobee

START_S = 60.0


class LastingDaemon:
    """`aerobee serve` with its name server; `settings` are `section.key=value`."""

    def __init__(self, folder: Path, *settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = folder / "store"
        self._log = folder / "daemon.log"
        self.port, name_server_port = free_port(), free_port()
        self.name_server = f"127.0.0.1:{name_server_port}"
        self._command = [
            *aerobee(), "serve", "--store", str(self.store), "--port", str(self.port),
            "--nameserver-port", str(name_server_port),
        ]  # fmt: skip
        wanted = ("broker.vip_port_enabled=false", "http.enabled=false", *SMALL_STORE)
        for setting in (*wanted, *settings):
            self._command += ["--set", setting]
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self) -> LastingDaemon:
        """Start it and wait until its port is open."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + START_S
        while not _is_open(self.port):
            assert self.alive, f"it has ended:\n{self.log}"
            assert time.monotonic() < until, f"not ready in {START_S} s:\n{self.log}"
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.kills += 1

    def restart_when_dead(self) -> bool:
        """Start it again if somebody has killed it; whether that was so."""
        if self.alive:
            return False
        self.kills += 1
        self.start()
        return True

    def close(self) -> None:
        """End it for good."""
        if self._process is not None and self.alive:
            self._process.kill()
            self._process.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
