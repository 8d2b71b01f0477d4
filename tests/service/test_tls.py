"""TLS of processes: starts that cannot be, the signal, a name server alone, shards."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerobee.client.blocking_roles import Admin
from aerobee.client.options import ClientOptions
from tests.ports import free_port
from tests.service.kit import Served, aerobee, wait_until
from tests.tls.authority import Authority, Pair, client

PASSWORD = "hidden-in-a-file"
ENCRYPTED = ClientOptions(use_tls=True)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def options_of(pair: Pair, *more: str) -> list[str]:
    settings = (
        "tls.server.mode=enforcing",
        f"tls.server.certPath={pair.certificate}",
        f"tls.server.keyPath={pair.key}",
        *more,
    )
    return [word for setting in settings for word in ("--set", setting)]


def shown(port: int) -> bytes:
    """The certificate of a port."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


def test_a_password_that_does_not_fit_ends_the_start_in_one_sentence(
    serve: Callable[..., Served], authority: Authority
) -> None:
    pair = authority.pair("broker", password=PASSWORD + "!")
    daemon = serve(*options_of(pair, f"tls.server.keyPassword={PASSWORD}"))
    assert daemon.wait() == 78
    (line,) = [line for line in daemon.log.splitlines() if line.startswith("aerobee: ")]
    assert f"tls.key_path = {pair.key}: is encrypted, and tls.server.keyPassword" in line
    assert PASSWORD not in daemon.log
    assert "Traceback" not in daemon.log
    assert not daemon.store.exists()


def test_a_signal_has_certificates_read_again(
    serve: Callable[..., Served], authority: Authority
) -> None:
    pair = authority.pair("broker", password=PASSWORD)
    daemon = serve(*options_of(pair, f"tls.server.keyPassword={PASSWORD}")).ready()
    authority.pair("broker", password=PASSWORD)
    daemon.process.send_signal(signal.SIGHUP)
    for port in (daemon.port, daemon.name_server_port, daemon.http_port):
        wait_until(lambda port=port: shown(port) == der(pair), "the new certificate")
    daemon.terminate()
    assert daemon.wait() == 0
    assert PASSWORD not in daemon.log
    assert "certificates read again" in daemon.log


@contextmanager
def name_server(*options: str) -> Iterator[int]:
    """A name server alone, and its port."""
    port = free_port()
    command = [*aerobee(), "nameserver", "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if b'"event": "ready"' in line:
                    break
            yield port
        finally:
            process.terminate()
            process.stderr.read()


def test_a_name_server_alone_takes_tls_and_brokers_come_over_it(
    serve: Callable[..., Served], authority: Authority, tmp_path: Path
) -> None:
    pair = authority.pair("names")
    options = options_of(pair, f"nameserver.kv_path={tmp_path / 'kv.json'}")
    with name_server(*options) as port:
        address = f"127.0.0.1:{port}"
        outgoing = (
            "tls.enable=true",
            "tls.client.authServer=true",
            f"tls.client.trustCertPath={authority.certificate}",
        )
        words = [word for setting in outgoing for word in ("--set", setting)]
        serve("-n", address, *words).ready()
        with Admin(address, ENCRYPTED) as admin:
            wait_until(lambda: admin.cluster().brokers, "the broker is registered")
        authority.pair("names")
        wait_until(lambda: shown(port) == der(pair), "the new certificate")


def test_the_command_line_speaks_tls(serve: Callable[..., Served], authority: Authority) -> None:
    daemon = serve(*options_of(authority.pair("broker"))).ready()
    address = f"127.0.0.1:{daemon.name_server_port}"
    command = [*aerobee(), "topic", "list", "-n", address]
    trusting = [*command, "--trust-store", str(authority.certificate)]
    for words, code in ((trusting, 0), ([*command, "--tls"], 0), (command, 3)):
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        assert done.returncode == code, done.stderr


def test_shards_take_nothing_but_tls(serve: Callable[..., Served], authority: Authority) -> None:
    pair = authority.pair("broker")
    daemon_http, port = free_port(1, 2), free_port(10)
    ports = ("--port", str(port), "--http-port", str(daemon_http))
    daemon = serve("--shards", "2", *ports, *options_of(pair))
    daemon.port, daemon.http_port = port, daemon_http
    daemon.ready()
    with Admin(f"127.0.0.1:{daemon.name_server_port}", ENCRYPTED) as admin:
        assert len(admin.cluster().brokers) == 2
    connection = http.client.HTTPSConnection(
        "127.0.0.1", daemon.http_port, timeout=30, context=client(authority)
    )
    connection.request("GET", "/ready")
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    assert (answer.status, body["ready"]) == (200, True)
    where = f"https://127.0.0.1:{daemon.http_port}"
    done = subprocess.run([*aerobee(), "shards", "--http", where], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    daemon.terminate()
    assert daemon.wait() == 0
