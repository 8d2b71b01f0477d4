"""Certificates and keys: how they are read, their faults, and when they are read again."""

from __future__ import annotations

import logging
import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings
from aerobee.config.tls.certificates import (
    ServerCertificates,
    expiry,
    outgoing_context,
    registration_context,
    server_certificates,
)
from tests.tls.authority import Authority, Pair, client

PASSWORD = "hidden-in-a-file"
DAY_S = 86400


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings_of(pair: Pair, **changes: Any) -> Settings:
    given = {"tls_certificate_path": str(pair.certificate), "tls_key_path": str(pair.key)}
    return Settings.for_tests(**{"tls_mode": "permissive", **given, **changes})


def shown(context: ssl.SSLContext, by: ssl.SSLContext | None = None) -> bytes:
    """The certificate that a client is shown; raises ssl.SSLError as the handshake does."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = (by or client()).wrap_bio(to_client, to_server)
    other = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = one.getpeercert(binary_form=True)
    assert found is not None
    return found


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())


def test_without_tls_nothing_is_read() -> None:
    assert server_certificates(Settings.for_tests()) is None
    assert registration_context(Settings.for_tests()) is None


@pytest.mark.parametrize("password", ["", PASSWORD])
def test_a_certificate_is_shown_on_every_port(authority: Authority, password: str) -> None:
    pair = authority.pair("broker", password=password)
    found = ServerCertificates(settings_of(pair, tls_key_password=password))
    for port in (found.clients, found.http):
        assert shown(port.context, client(authority)) == der(pair)
        assert port.context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert not port.required
    assert found.probe() is None


def test_clients_are_asked_for_certificates_and_probes_are_not(authority: Authority) -> None:
    pair, user = authority.pair("broker"), authority.pair("user")
    settings = settings_of(
        pair, tls_client_certificate="require", tls_trust_path=str(authority.certificate)
    )
    found = ServerCertificates(settings)
    assert shown(found.http.context)
    assert shown(found.clients.context, client(pair=user))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN"):
        shown(found.clients.context)


def wrong(settings: Settings) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        ServerCertificates(settings)
    text = str(caught.value)
    assert "\n" not in text
    assert PASSWORD not in text
    return caught.value


@pytest.mark.parametrize(
    ("change", "key", "text"),
    [
        ({"tls_certificate_path": "/no/such.pem"}, "tls.certificate_path", "cannot be read: No su"),
        ({"tls_key_path": "/no/such.key"}, "tls.key_path", "cannot be read: No such file"),
        ({"tls_key_path": "other"}, "tls.key_path", "is not the key of the certificate in"),
        ({"tls_key_path": "certificate"}, "tls.key_path", "holds no private key in PEM"),
        ({"tls_certificate_path": "key"}, "tls.certificate_path", "holds no certificate in PEM"),
        ({"tls_key_path": "half"}, "tls.certificate_path", "is damaged or not whole, or the"),
        ({"tls_key_path": "locked"}, "tls.key_path", "is encrypted, and tls.server.keyPassword"),
        (
            {"tls_key_path": "locked", "tls_key_password": PASSWORD + "!"},
            "tls.key_path",
            "is encrypted, and tls.server.keyPassword (tls.key_password) does not open it",
        ),
        (
            {"tls_trust_path": "key", "tls_client_certificate": "optional"},
            "tls.trust_path",
            "holds no certificate in PEM",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(
    authority: Authority, tmp_path: Path, change: dict[str, str], key: str, text: str
) -> None:
    pair = authority.pair("broker")
    half = tmp_path / "half.key"
    half.write_text(pair.key.read_text()[:100] + "\n-----END PRIVATE KEY-----\n")
    names = {
        "other": authority.pair("other").key,
        "certificate": pair.certificate,
        "key": pair.key,
        "half": half,
        "locked": authority.pair("locked", password=PASSWORD).key,
    }
    changes = {name: str(names.get(value, value)) for name, value in change.items()}
    error = wrong(settings_of(pair, **changes))
    assert error.key == key
    assert text in str(error)


def test_new_files_are_for_new_connections(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee.config")
    pair = authority.pair("broker")
    found = ServerCertificates(settings_of(pair))
    before = found.clients.context
    found.look()
    assert found.clients.context is before
    authority.pair("broker")
    found.look()
    assert shown(found.clients.context) == shown(found.http.context) == der(pair)
    assert found.clients.context is not before
    found.look()
    assert caplog.messages == ["certificates read again"]


def test_a_half_written_pair_leaves_the_one_before_in_force(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.pair("broker")
    old = der(pair)
    found = ServerCertificates(settings_of(pair, tls_key_password=PASSWORD))
    text = pair.certificate.read_text()
    new = authority.pair("new")
    # The certificate is there, its key not yet; then half of the key; then all.
    pair.certificate.write_text(new.certificate.read_text())
    for key in (None, new.key.read_text()[:60], ""):
        if key is not None:
            pair.key.write_text(key)
        found.look()
        found.look()
        assert shown(found.clients.context) == old
        assert str(pair.key) in (found.probe() or "")
    assert len(caplog.messages) == 3
    assert not any(PASSWORD in message for message in caplog.messages)
    pair.key.write_text(new.key.read_text())
    found.look()
    assert found.probe() is None
    assert shown(found.clients.context) == der(new)
    os.unlink(pair.certificate)
    found.look()
    assert "cannot be read" in (found.probe() or "")
    pair.certificate.write_text(text)


def test_a_signal_has_them_read_though_nothing_seems_to_have_changed(authority: Authority) -> None:
    found = ServerCertificates(settings_of(authority.pair("broker")))
    before = found.clients.context
    found.read_again()
    assert found.clients.context is not before


def test_a_certificate_for_trying_out_is_made_at_the_start(tmp_path: Path) -> None:
    settings = Settings.for_tests(tls_mode="permissive")
    one, other = ServerCertificates(settings), ServerCertificates(settings)
    assert shown(one.clients.context) == shown(one.http.context)
    assert shown(one.clients.context) != shown(other.clients.context)
    one.look()
    one.read_again()
    assert one.probe() is None


def test_without_the_package_for_it_the_start_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    error = wrong(Settings.for_tests(tls_mode="permissive"))
    assert "pip install 'aerobee[selfsigned]'" in str(error)


def test_outgoing_connections_check_what_they_are_told_to(authority: Authority) -> None:
    server = ServerCertificates(settings_of(authority.pair("server"))).clients.context
    assert shown(server, outgoing_context(Settings.for_tests()))
    checks = {"tls_check_servers": True, "tls_client_trust_path": str(authority.certificate)}
    assert shown(server, outgoing_context(Settings.for_tests(**checks)))
    with pytest.raises(ssl.SSLCertVerificationError):
        shown(server, outgoing_context(Settings.for_tests(tls_check_servers=True)))
    pair = authority.pair("us")
    ours = {
        "tls_client_certificate_path": str(pair.certificate),
        "tls_client_key_path": str(pair.key),
    }
    required = settings_of(
        authority.pair("strict"),
        tls_client_certificate="require",
        tls_trust_path=str(authority.certificate),
    )
    strict = ServerCertificates(required).clients.context
    assert shown(strict, outgoing_context(Settings.for_tests(**ours)))


def test_a_brokers_own_name_server_is_spoken_to_as_it_demands(authority: Authority) -> None:
    pair = authority.pair("broker")
    assert registration_context(settings_of(pair)) is None
    assert registration_context(settings_of(pair, tls_outgoing=True)) is not None
    assert registration_context(settings_of(pair, tls_mode="enforcing")) is not None
    elsewhere = {"tls_mode": "enforcing", "name_servers": "10.0.0.1:9876"}
    assert registration_context(settings_of(pair, **elsewhere)) is None
    asked = {
        "tls_client_certificate": "require",
        "tls_trust_path": str(authority.certificate),
        "tls_mode": "enforcing",
    }
    with pytest.raises(ConfigError, match=r"tls\.client_certificate_path"):
        registration_context(settings_of(pair, **asked))


def test_what_is_no_file_keeps_nobody_waiting(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("broker")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "is no regular file" in str(wrong(settings_of(Pair(pair.certificate, fifo))))


def test_rights_that_are_given_back_are_noticed(authority: Authority) -> None:
    pair = authority.pair("broker")
    found = server_certificates(settings_of(pair))
    assert found is not None
    marks = found._look_at_files()
    pair.key.chmod(0o640)
    assert found._look_at_files() != marks


def test_the_end_of_a_certificate_is_said_two_weeks_before_and_when_it_is_there(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.pair("broker", days=30)
    now = time.time()
    found = ServerCertificates(settings_of(pair), lambda: now)
    assert found.expires is not None
    assert abs(found.expires.timestamp() - now - 30 * DAY_S) < 60
    end = f"{found.expires:%Y-%m-%d %H:%M} UTC"
    soon = f"the certificate in {pair.certificate} ends at {end}"
    over = (
        f"the certificate in {pair.certificate} has ended at {end}: who checks it does not connect"
    )
    for days, said in ((15, None), (17, soon), (29, soon), (31, over), (40, over)):
        now = found.expires.timestamp() + (days - 30) * DAY_S
        found.look()
        assert found.probe_expiry() == said
        assert found.probe() is None  # the files are as right as before
    assert [record.message for record in caplog.records] == [soon, over]
    authority.pair("broker", days=365)
    now = time.time()
    found.look()
    assert found.probe_expiry() is None


@pytest.mark.parametrize("years", [1, 30])
def test_both_ways_to_write_a_time(authority: Authority, years: int) -> None:
    """Two figures of the year up to 2049, four of them later."""
    pair = authority.pair("broker", days=years * 365)
    text = pair.certificate.read_text()
    wanted = x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc
    assert expiry("Subject: a text before it\n" + text) == wanted
    # The first certificate of a chain is shown.
    assert expiry(text + authority.certificate.read_text()) == wanted


def test_what_is_no_certificate_has_no_end(authority: Authority) -> None:
    der_text = der(authority.pair("broker"))
    for size in range(len(der_text)):
        with pytest.raises(ValueError, match=r"certificate|time data"):
            expiry(ssl.DER_cert_to_PEM_cert(der_text[:size]))
    with pytest.raises(ValueError, match="no certificate in PEM"):
        expiry("")
