"""TLS at a whole broker: its ports, its own name server, its probes, and what clients see of it."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.cli.main import main
from aerobee.client.blocking_roles import Producer, PullConsumer
from aerobee.client.errors import NetworkError
from aerobee.client.message import Message
from aerobee.client.options import ClientOptions, ProducerOptions
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.testing import RunningBroker
from tests.interop.processes import wait_until
from tests.ports import free_port
from tests.tls.authority import Authority, Pair, client


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings_of(pair: Pair, mode: str = "enforcing", **more: Any) -> dict[str, Any]:
    return {
        "tls_mode": mode,
        "tls_certificate_path": str(pair.certificate),
        "tls_key_path": str(pair.key),
        "http_enabled": True,
        "http_port": 0,
        **more,
    }


def secured(authority: Authority) -> dict[str, Any]:
    return {"use_tls": True, "trust_store": str(authority.certificate)}


def round_trip(server: str, **access: Any) -> None:
    """Send a message, and pull it."""
    with Producer(server, options=ProducerOptions(**access)) as producer:
        sent = producer.send(Message("Secret", b"body"))
    with PullConsumer(server, options=ClientOptions(**access)) as consumer:
        found = consumer.pull(sent.queue, sent.queue_offset)
    assert [message.body for message in found.messages] == [b"body"]


def page(running: RunningBroker, path: str, context: ssl.SSLContext | None) -> tuple[int, bytes]:
    host, _, port = running.http.rpartition(":")
    if context is None:
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
    else:
        connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


@pytest.mark.parametrize("address", ["broker", "vip"])
def test_enforcing_serves_tls_on_every_port_and_nothing_else(
    authority: Authority, address: str
) -> None:
    options = settings_of(authority.pair("broker"), http_port=free_port())
    with aerobee.testing.broker(**options) as running:
        round_trip(running.name_server, **secured(authority))
        with pytest.raises(NetworkError):
            round_trip(running.name_server)
        assert page(running, "/ready", client(authority))[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            page(running, "/ready", None)
        host, _, port = getattr(running, address).rpartition(":")
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.get_server_certificate((host, int(port)), ca_certs=str(_other(authority)))
        metrics = page(running, "/metrics", client(authority))[1].decode()
        failures = re.findall(r"^aerobee_tls_failures_total\{(.*)\} (\S+)$", metrics, re.MULTILINE)
        plain = [
            float(count)
            for labels, count in failures
            if 'server="nameserver"' in labels and "plain_on_enforcing" in labels
        ]
        assert sum(plain) >= 1


def test_many_requests_of_one_read_are_served_in_order(authority: Authority) -> None:
    """This holds for the compiled form too, where it was built."""
    count = 300
    with (
        aerobee.testing.broker(
            **settings_of(authority.pair("broker"), http_port=free_port())
        ) as on,
        Producer(on.name_server, options=ProducerOptions(**secured(authority))) as producer,
    ):
        first = producer.send(Message("Piped", b"first", properties={"n": "0"}))
        host, _, port = on.broker.rpartition(":")
        fields = {
            "a": "group",
            "b": "Piped",
            "c": "TBW102",
            "d": "4",
            "e": str(first.queue.queue_id),
            "f": "0",
            "g": "1",
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
            "l": "0",
        }
        asked = [make_request(310, dict(fields), b"%d" % n) for n in range(count)]
        plain = socket.create_connection((host, int(port)), 20)
        with client(authority).wrap_socket(plain) as connected:
            connected.sendall(b"".join(request.encode() for request in asked))
            decoder, answers = FrameDecoder(), []
            while len(answers) < count:
                answers += decoder.feed(connected.recv(1 << 20))
    assert [answer.opaque for answer in answers] == [request.opaque for request in asked]
    assert {answer.code for answer in answers} == {0}
    offsets = [int(answer.ext["queueOffset"]) for answer in answers]
    assert offsets == list(range(first.queue_offset + 1, first.queue_offset + 1 + count))


def test_permissive_serves_both(authority: Authority) -> None:
    options = settings_of(authority.pair("broker"), "permissive", http_port=free_port())
    with aerobee.testing.broker(**options) as running:
        round_trip(running.name_server, **secured(authority))
        round_trip(running.name_server)
        for context in (client(authority), None):
            assert page(running, "/live", context)[0] == 200


def test_a_broker_that_requires_certificates_registers_at_its_own_name_server(
    authority: Authority,
) -> None:
    us, user = authority.pair("us"), authority.pair("user")
    options = settings_of(
        authority.pair("broker"),
        tls_client_certificate="require",
        tls_trust_path=str(authority.certificate),
        tls_client_certificate_path=str(us.certificate),
        tls_client_key_path=str(us.key),
        http_port=free_port(),
    )
    with aerobee.testing.broker(**options) as running:
        shown = {"certificate": str(user.certificate), "certificate_key": str(user.key)}
        round_trip(running.name_server, **secured(authority), **shown)
        with pytest.raises(NetworkError):
            round_trip(running.name_server, **secured(authority))
        # Probes have none.
        assert page(running, "/ready", client(authority))[0] == 200


def test_a_test_certificate_is_enough_for_who_does_not_check() -> None:
    with aerobee.testing.broker(tls_mode="enforcing") as running:
        round_trip(running.name_server, use_tls=True)


def test_files_that_changed_are_for_new_connections_and_damage_is_told_by_readiness(
    authority: Authority,
) -> None:
    pair = authority.pair("broker")
    with aerobee.testing.broker(**settings_of(pair, http_port=free_port())) as running:
        whole = pair.key.read_text()
        pair.key.write_text(whole[:80])

        def faults() -> list[dict[str, Any]]:
            code, text = page(running, "/ready", client(authority))
            # The pair before it serves on.
            assert code == 200
            return [check for check in json.loads(text)["checks"] if not check["ok"]]

        wait_until(lambda: bool(faults()), 20, "the fault is told")
        (told,) = faults()
        assert (told["check"], told["note"]) == ("certificates", True)
        assert str(pair.key) in told["reason"]
        round_trip(running.name_server, **secured(authority))
        new = authority.pair("broker")
        wait_until(lambda: not faults(), 20, "it is mended")
        expected = ssl.PEM_cert_to_DER_cert(new.certificate.read_text())
        host, _, port = running.broker.rpartition(":")

        def is_shown() -> bool:
            text = ssl.get_server_certificate((host, int(port)))
            return ssl.PEM_cert_to_DER_cert(text) == expected

        wait_until(is_shown, 20, "the new certificate is shown")


def test_a_command_that_is_closed_without_a_word_says_what_may_be_missing(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One thing after the other, until it is taken."""
    asking = {"tls_client_certificate": "require", "tls_trust_path": str(authority.certificate)}
    own, user = authority.pair("broker"), authority.pair("user")
    stranger = Authority(tmp_path / "others", "others").pair("stranger")
    outgoing = {
        "tls_client_certificate_path": str(user.certificate),
        "tls_client_key_path": str(user.key),
    }
    with aerobee.testing.broker(**settings_of(own, **asking, **outgoing)) as running:
        command = ["topic", "list", "-n", running.name_server]
        assert main(command) == 3
        assert "nothing but TLS? --tls speaks it" in capsys.readouterr().err
        command += ["--trust-store", str(authority.certificate)]
        assert main(command) == 3
        assert "ask for a certificate? --certificate shows one" in capsys.readouterr().err
        for pair, code in ((stranger, 3), (user, 0)):
            shown = ["--certificate", str(pair.certificate), "--certificate-key", str(pair.key)]
            assert main([*command, *shown]) == code
        assert "does it trust the certificate that --certificate has" in capsys.readouterr().err


def test_a_broker_that_is_closed_without_a_word_says_what_may_be_missing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so of its registration at another's name server, in its log and in /ready."""
    asking = {"tls_client_certificate": "require", "tls_trust_path": str(authority.certificate)}
    own, user = authority.pair("broker"), authority.pair("user")
    shown = {
        "tls_client_certificate_path": str(user.certificate),
        "tls_client_key_path": str(user.key),
    }
    with aerobee.testing.broker(**settings_of(own, **asking, **shown)) as running:
        there = {"name_servers": running.name_server, "nameserver_enabled": False}
        there |= {"http_enabled": True, "http_port": free_port()}
        for options, hint in (
            ({}, "nothing but TLS? tls.enable=true speaks it"),
            ({"tls_outgoing": True}, "ask for a certificate? tls.client.certPath with"),
        ):
            caplog.clear()
            with aerobee.testing.broker(**there, **options) as other:
                code, body = page(other, "/ready", None)
                (told,) = [one for one in json.loads(body)["checks"] if not one["ok"]]
                assert (code, told["check"]) == (503, "registered")
                assert hint in told["reason"]
            assert hint in caplog.text
        with aerobee.testing.broker(**there, tls_outgoing=True, **shown) as other:
            assert page(other, "/ready", None)[0] == 200


def _other(authority: Authority) -> Path:
    directory = authority.certificate.parent / "others"
    return Authority(directory, "stranger").certificate
