"""Claims about the daemon as a supervisor sees it: messages, signals, exit codes, health."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.protocol.frames.command import make_request
from tests.service.kit import Served, Wire, aerobee

Serve = Callable[..., Served]

RUNTIME_INFO = 28
EX_CONFIG = 78
IDLE_BYTES = 60 << 20


def rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def send_for_ever(peer: socket.socket, data: bytes) -> None:
    while True:
        peer.sendall(data)


def test_ready_is_said_when_all_ports_answer(serve: Serve) -> None:
    daemon = serve().ready()
    for port in (daemon.port, daemon.name_server_port, daemon.http_port):
        socket.create_connection(("127.0.0.1", port), 5).close()
    assert daemon.get("/live")[0] == 200
    status, body = daemon.get("/ready")
    assert status == 200, body
    checks = {check["check"]: check["ok"] for check in json.loads(body)["checks"]}
    assert checks == dict.fromkeys(
        (
            *("serving", "recovered", "closed to strangers", "store", "registered", "disk"),
            *("tables", "tables are whole", "its name is its own", "audit"),
        ),
        True,
    )
    assert any(message.startswith("READY=1\nSTATUS=") for message in daemon.messages)


def test_sigterm_stops_in_order(serve: Serve) -> None:
    daemon = serve().ready()
    with Wire(daemon.port) as wire:
        assert wire.send_message("T", b"kept").code == 0
    abort = daemon.store / "abort"
    assert abort.exists()
    daemon.terminate()
    daemon.wait_for("STOPPING=1")
    assert daemon.wait() == 0, daemon.log
    assert not abort.exists()
    assert "Traceback" not in daemon.log


def test_second_sigterm_leaves_at_once(serve: Serve) -> None:
    daemon = serve().ready()
    # A peer that asks for much and reads nothing: closing it in order takes its grace time.
    request = make_request(RUNTIME_INFO).encode() * 5000
    with socket.create_connection(("127.0.0.1", daemon.port), 5) as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.settimeout(0.5)
        with pytest.raises(TimeoutError):
            send_for_ever(greedy, request)
        daemon.terminate()
        daemon.wait_for("STOPPING=1")
        asked = time.monotonic()
        daemon.terminate()
        assert daemon.wait(5) == 128 + 15, daemon.log
        assert time.monotonic() - asked < 1.0
    assert (daemon.store / "abort").exists()


def test_messages_survive_leaving_at_once(serve: Serve) -> None:
    daemon = serve().ready()
    with Wire(daemon.port) as wire:
        for number in range(20):
            assert wire.send_message("T", b"%d" % number).code == 0
    daemon.process.kill()
    daemon.wait()
    again = serve().ready()
    with Wire(again.port) as wire:
        answer = wire.call(30, {"topic": "T", "queueId": "0"})
    assert answer.ext["offset"] == "20"


def test_watchdog_is_fed(serve: Serve) -> None:
    daemon = serve(environ={"WATCHDOG_USEC": "400000"}).ready()
    for _ in range(3):
        daemon.wait_for("WATCHDOG=1", timeout_s=5)


def test_wrong_configuration_exits_78(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[broker]\nlisten_prot = 1\n")
    command = [*aerobee(), "serve", "-c", str(wrong)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == EX_CONFIG
    assert "listen_prot" in result.stderr
    assert "listen_port" in result.stderr


def test_store_in_use_is_refused_and_the_owner_not_disturbed(serve: Serve) -> None:
    owner = serve().ready()
    second = serve("--store", str(owner.store), folder="second")
    assert second.wait() == 1
    assert "Traceback" not in second.log
    assert str(owner.store) in second.log
    assert owner.get("/ready")[0] == 200


def test_a_second_daemon_with_the_same_ports_is_told_of_the_store(serve: Serve) -> None:
    owner = serve().ready()
    ports = ("--port", str(owner.port), "--http-port", str(owner.http_port))
    second = serve("--store", str(owner.store), *ports, folder="second")
    assert second.wait() == 1
    assert f"{owner.store} is in use by another broker" in second.log
    with Wire(owner.port) as wire:
        assert wire.send_message("T", b"served").code == 0


def test_port_in_use_is_named(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = serve("--port", str(port))
        assert daemon.wait() == 3
    assert str(port) in daemon.log
    assert "Traceback" not in daemon.log


def test_http_port_in_use_is_named_with_its_flag(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = serve("--http-port", str(port))
        assert daemon.wait() == 3
    last = daemon.log.splitlines()[-1]
    assert f"127.0.0.1:{port} " in last
    assert "--http-port" in last
    assert "Errno" not in last


def test_own_ports_that_clash_are_a_wrong_configuration(serve: Serve) -> None:
    daemon = serve("--http-port", "12909", "--nameserver-port", "12909")
    assert daemon.wait() == EX_CONFIG
    assert "http.port = 12909: is also nameserver.port" in daemon.log
    assert not daemon.store.exists()


def test_idle_daemon_fits_its_memory_also_after_a_scrape(serve: Serve) -> None:
    daemon = serve().ready()
    idle = rss_bytes(daemon.process.pid)
    assert daemon.get("/metrics")[0] == 200
    scraped = rss_bytes(daemon.process.pid)
    print(f"resident: idle {idle >> 20} MiB, scraped {scraped >> 20} MiB")
    assert idle <= scraped <= IDLE_BYTES
