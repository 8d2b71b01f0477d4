"""Shared by the service tests: required tools, a daemon under a fake supervisor.

The fake supervisor is the socket systemd would give: the daemon's messages are read from it, and
`Served.wait_for` is how a test knows that something has happened. Nothing here sleeps to be safe;
waits end when their condition holds and fail after a bound.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from tests.parts import need
from tests.ports import free_port

WAIT_S = 30.0
# Small files: a test's store is a few megabytes instead of a few gigabytes.
SMALL_STORE = (
    "store.commit_log_segment_bytes=4194304",
    "store.index_slots=1000",
    "store.index_entries=4000",
)


def tool(name: str, package: str) -> str:
    """Path of a program; without it the test skips with one line, or fails under CI=true."""
    lacking = f"{name} is missing: Debian package {package}"
    need("monitors", missing=lambda: None if shutil.which(name) else lacking)
    path = shutil.which(name)
    assert path is not None
    return path


def aerobee() -> list[str]:
    """The command under test, from the environment that runs the tests."""
    return [str(Path(sys.executable).with_name("aerobee"))]


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Poll an outside program's state; there is nobody to notify us of it."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)


class Served:
    """`aerobee serve` as a child process, with a notify socket."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        store: Path | None = None,
        program: list[str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = store or folder / "store"
        self.port, self.name_server_port, self.http_port = free_port(), free_port(), free_port()
        self.messages: list[str] = []
        self._log = folder / "log"
        self._supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = folder / "notify"
        address.unlink(missing_ok=True)
        self._supervisor.bind(str(address))
        command = [
            *prefix, *(program or aerobee()), "serve", "--store", str(self.store),
            "--port", str(self.port), "--nameserver-port", str(self.name_server_port),
            "--http-port", str(self.http_port),
        ]  # fmt: skip
        for setting in ("broker.vip_port_enabled=false", *SMALL_STORE):
            command += ["--set", setting]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                env={**os.environ, **(environ or {}), "NOTIFY_SOCKET": str(address)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, line: str, timeout_s: float = WAIT_S) -> None:
        """Read the supervisor's socket until a message has this line."""
        deadline = time.monotonic() + timeout_s
        while True:
            remaining = deadline - time.monotonic()
            assert remaining > 0, f"no {line} within {timeout_s:.0f} s; log:\n{self.log}"
            self._supervisor.settimeout(min(remaining, 0.2))
            try:
                message = self._supervisor.recv(8192).decode()
            except TimeoutError:
                assert self.process.poll() is None, f"ended before {line}; log:\n{self.log}"
                continue
            self.messages.append(message)
            if line in message.split("\n"):
                return

    def ready(self) -> Served:
        self.wait_for("READY=1")
        return self

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """Status and body of a GET at the HTTP port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET", path, headers=names)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s:.0f} s; log:\n{self.log}")

    def close(self) -> None:
        """End it for good, whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._supervisor.close()


class Wire:
    """A blocking connection to the broker that sends requests and takes their answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._decoder = FrameDecoder()
        self._answers: deque[Command] = deque()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> Command:
        """One request and its answer."""
        self.ask(code, ext, body)
        return self.answer()

    def ask(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> None:
        """A request whose answer is to come later."""
        self._socket.sendall(make_request(code, dict(ext), body).encode())

    def answer(self) -> Command:
        """The next answer, or the next request of the broker's; several may come at once."""
        while not self._answers:
            data = self._socket.recv(65536)
            assert data, "the broker closed the connection"
            self._answers.extend(self._decoder.feed(data))
        return self._answers.popleft()

    def send_message(self, topic: str, body: bytes, **properties: str) -> Command:
        """SEND_MESSAGE_V2 into queue 0, creating the topic (protocol/WIRE.md 3.1)."""
        text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
        ext = {
            "a": "service-test", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": text, "j": "0", "k": "false",
            "l": "0", "m": "false",
        }  # fmt: skip
        return self.call(310, ext, body)


def metric(daemon: Served, name: str) -> float:
    """One figure of the daemon's page, by its name with labels."""
    status, page = daemon.get("/metrics")
    assert status == 200
    match = re.search(rf"^{re.escape(name)} (\S+)$", page.decode(), re.MULTILINE)
    assert match, f"no {name} in {page.decode()}"
    return float(match[1])
