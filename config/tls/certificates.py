"""Certificates and keys as the settings name them, made into contexts of TLS, and made anew when
their files change.

TLS 1.2 and later only, with Python's choice of ciphers for 1.2 (forward secrecy, and encryption
with authentication); no renegotiation and no compression. A context is replaced whole, so each new
connection has the old files or the new ones, and never a half of each. Files that do not make a
context (half written, a key of another certificate) leave the one before it in force: `fault` says
so until they are right.

What is wrong with a file is told in one sentence, which names the setting and the file and never
holds what is in it. `ServerCertificates.look` and `read_again` open files: they may be called on
any thread, and the two, one after the other. Everything else is the loop's.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import stat
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from aerobee.config.errors import ConfigError
from aerobee.config.model import BY_NAME, Settings

log = logging.getLogger("aerobee.config")

_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}
# Marks that are looked for in a file before OpenSSL reads it: its errors do not name the file.
_CERTIFICATE: Final = (b"-----BEGIN CERTIFICATE-----", "holds no certificate in PEM")
_KEY: Final = (b"PRIVATE KEY-----", "holds no private key in PEM")
_FILE_BYTES_MAX: Final = 1 << 20
# From when on the end of the certificate is said: those that are renewed by themselves are renewed
# weeks before.
_ENDS_SOON: Final = timedelta(days=14)
_OLD_CIPHER: Final = (
    "is encrypted in a way that OpenSSL does not read any more: write it anew with "
    "openssl pkcs8 -topk8 -v2 aes-256-cbc"
)

#: Times at which a file and its rights were changed, its number, its size; None where it cannot be
#: looked at.
_Mark = tuple[int, int, int, int] | None


class _Pair(NamedTuple):
    """Names of the settings of one certificate."""

    certificate: str
    key: str
    password: str


_SERVER: Final = _Pair("tls_certificate_path", "tls_key_path", "tls_key_password")
_CLIENT: Final = _Pair(
    "tls_client_certificate_path", "tls_client_key_path", "tls_client_key_password"
)


class PortCertificates(NamedTuple):
    """The certificates and rules that a port asks for TLS (`remoting/listening/arrivals.py`)."""

    required: bool
    handshake_s: float
    now: Callable[[], ssl.SSLContext]

    @property
    def context(self) -> ssl.SSLContext:
        """That of new connections."""
        return self.now()


class ServerCertificates:
    """The certificate that all ports of a process show, as `settings` have it."""

    def __init__(self, settings: Settings, wall_clock: Callable[[], float] = time.time) -> None:
        """Read everything. Raises ConfigError for what cannot be used."""
        self._settings = settings
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._marks = self._look_at_files()
        self._contexts = self._read()
        #: When the certificate ends; None for a certificate that was made at the start.
        self.expires = self._find_expiry()
        self._said: str | None = None
        #: Why the files cannot be used as they are now; None while they can.
        self.fault: str | None = None
        required = settings.tls_mode == "enforcing"
        within_s = float(settings.tls_handshake_seconds)
        #: For the ports that speak RocketMQ's protocol.
        self.clients = PortCertificates(required, within_s, lambda: self._contexts[0])
        #: For the HTTP port, which asks for no certificate: probes have none.
        self.http = PortCertificates(required, within_s, lambda: self._contexts[1])

    def look(self) -> None:
        """Read the files again if one has changed since they were last read; and say once in the
        log that the certificate ends soon, and once that it has ended."""
        with self._lock:
            marks = self._look_at_files()
            if marks != self._marks:
                self._replace(marks)
            said, self._said = self._said, self.probe_expiry()
            if self._said is not None and self._said != said:
                log.warning("%s", self._said, extra={"each": True})

    def read_again(self) -> None:
        """Read the files again."""
        with self._lock:
            self._replace(self._look_at_files())

    def probe(self) -> str | None:
        """For readiness: what is wrong with the files."""
        return self.fault

    def probe_expiry(self) -> str | None:
        """For readiness: that the certificate has ended, or will soon."""
        if self.expires is None:
            return None
        left = self.expires - datetime.fromtimestamp(self._wall_clock(), UTC)
        if left > _ENDS_SOON:
            return None
        path, end = self._settings.tls_certificate_path, f"{self.expires:%Y-%m-%d %H:%M} UTC"
        if left > timedelta():
            return f"the certificate in {path} ends at {end}"
        return f"the certificate in {path} has ended at {end}: who checks it does not connect"

    def _find_expiry(self) -> datetime | None:
        path = self._settings.tls_certificate_path
        if not path:
            return None
        try:
            return expiry(Path(path).read_text(encoding="ascii", errors="replace"))
        except (OSError, ValueError):
            # Replaced since OpenSSL has read it: the next look sees that, and reads all again.
            return None

    def _replace(self, marks: list[_Mark]) -> None:
        # Taken before the files are read: what changes meanwhile is seen at the next look.
        self._marks = marks
        if not self._settings.tls_certificate_path:
            return
        try:
            self._contexts = self._read()
            self.expires = self._find_expiry()
        except ConfigError as error:
            if self.fault != str(error):
                text = "certificates not taken, those before stay in force: %s"
                log.error(text, error, extra={"each": True})
            self.fault = str(error)
            return
        self.fault = None
        log.info("certificates read again", extra={"each": True})

    def _look_at_files(self) -> list[_Mark]:
        settings = self._settings
        return [
            _mark(path)
            for path in (
                settings.tls_certificate_path,
                settings.tls_key_path,
                settings.tls_trust_path,
            )
            if path
        ]

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """The contexts for clients and for HTTP."""
        settings = self._settings
        contexts = _server_context(), _server_context()
        if settings.tls_certificate_path:
            for context in contexts:
                _load_pair(context, settings, _SERVER)
        else:
            from aerobee.config.tls.self_signed import load_self_signed  # runs openssl

            load_self_signed(contexts)
        if settings.tls_client_certificate != "none" and settings.tls_trust_path:
            _load_trust(contexts[0], settings, "tls_trust_path")
            contexts[0].verify_mode = _VERIFY[settings.tls_client_certificate]
        return contexts


def server_certificates(settings: Settings) -> ServerCertificates | None:
    """Those of a process that takes TLS. Raises ConfigError."""
    return ServerCertificates(settings) if settings.takes_tls else None


def outgoing_context(settings: Settings) -> ssl.SSLContext:
    """For connections that the broker makes itself. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Servers are known by their addresses, as everywhere in RocketMQ.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.tls_client_certificate_path:
        _load_pair(context, settings, _CLIENT)
    if settings.tls_check_servers:
        if settings.tls_client_trust_path:
            _load_trust(context, settings, "tls_client_trust_path")
        else:
            context.load_default_certs()
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def registration_context(settings: Settings) -> ssl.SSLContext | None:
    """For the connections to name servers, None where they are plain: with a broker's own, because
    that is what it takes where TLS is required, or because it is wished. Raises ConfigError."""
    own = settings.nameserver_enabled and not settings.name_server_list
    required = own and settings.tls_mode == "enforcing"
    if not required and not settings.tls_outgoing:
        return None
    asked = settings.takes_tls and settings.tls_client_certificate == "require"
    if own and asked and not settings.tls_client_certificate_path:
        name = BY_NAME["tls_client_certificate_path"]
        reason = (
            f"is needed ({name.rocketmq_key}): the broker registers at its own name server, which "
            "requires certificates"
        )
        raise ConfigError(name.full_key, "", reason)
    return outgoing_context(settings)


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _load_pair(context: ssl.SSLContext, settings: Settings, names: _Pair) -> None:
    certificate, key, password = (getattr(settings, name) for name in names)
    _check_text(names.certificate, certificate, *_CERTIFICATE)
    _check_text(names.key, key, *_KEY)
    asked: list[bool] = []

    def give_password() -> str:
        # Without this OpenSSL would ask whoever sits at the terminal.
        asked.append(True)
        return str(password)

    try:
        context.load_cert_chain(certificate, key, give_password)
    except ssl.SSLError as error:
        raise _wrong_pair(names, certificate, key, error, asked=bool(asked)) from None
    except (OSError, ValueError) as error:
        # ValueError: a password that is longer than OpenSSL takes.
        raise _wrong(names.key, key, f"cannot be read: {error}") from None


def _wrong_pair(
    names: _Pair, certificate: str, key: str, error: ssl.SSLError, *, asked: bool
) -> ConfigError:
    reason = error.reason or ""
    if "KEY_VALUES_MISMATCH" in reason or "KEY_TYPE_MISMATCH" in reason:
        return _wrong(names.key, key, f"is not the key of the certificate in {certificate}")
    if "UNSUPPORTED" in reason or "UNKNOWN_CIPHER" in reason:
        return _wrong(names.key, key, _OLD_CIPHER)
    if asked:
        setting = BY_NAME[names.password]
        text = f"is encrypted, and {setting.rocketmq_key} ({setting.full_key}) does not open it"
        return _wrong(names.key, key, text)
    if "EE_KEY_TOO_SMALL" in reason or "MD_TOO_WEAK" in reason:
        text = "is too weak for TLS today: RSA of 2048 bits and SHA-256 are the least"
        return _wrong(names.certificate, certificate, text)
    text = f"is damaged or not whole, or the key in {key} is"
    return _wrong(names.certificate, certificate, text)


def _load_trust(context: ssl.SSLContext, settings: Settings, name: str) -> None:
    path = getattr(settings, name)
    _check_text(name, path, *_CERTIFICATE)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError):
        raise _wrong(name, path, "holds a certificate that is damaged, or not whole") from None


def _check_text(name: str, path: str, text: bytes, otherwise: str) -> None:
    try:
        # Opening a pipe would wait for its other end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise _wrong(name, path, "is no regular file")
        with open(path, "rb") as file:
            found = text in file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise _wrong(name, path, f"cannot be read: {error.strerror}") from None
    if not found:
        raise _wrong(name, path, otherwise)


def _wrong(name: str, path: str, reason: str) -> ConfigError:
    return ConfigError(BY_NAME[name].full_key, path, reason)


def _mark(path: str) -> _Mark:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


# --- the end of a certificate, read from its bytes (X.509, RFC 5280 section 4.1): Python's `ssl`
# tells it only of a peer's certificate that it has checked, and a certificate of ours is never
# that.

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# Tags of DER: the version, which may be left out, and the two ways to write a time.
_VERSION, _UTC_TIME, _TIME = 0xA0, 0x17, 0x18


class Validity(NamedTuple):
    """The times between which a certificate holds."""

    begin: datetime
    end: datetime


def expiry(pem: str) -> datetime:
    """The end of the first certificate in a text, which the server shows; those after it belong to
    its issuers. Raises ValueError when the text holds no certificate."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("no certificate in PEM")
    return validity(ssl.PEM_cert_to_DER_cert(found[0])).end


def validity(der: bytes) -> Validity:
    """When a certificate in DER holds. Raises ValueError for other bytes."""
    try:
        return _validity_of(der)
    except IndexError:
        raise ValueError("a certificate that is cut off") from None


def _validity_of(der: bytes) -> Validity:
    _, at, _ = _element(der, 0)  # the certificate
    _, at, _ = _element(der, at)  # what is signed of it
    tag, _, end = _element(der, at)
    if tag == _VERSION:
        at = end
    for _ in range(3):  # serial number, algorithm, issuer
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)  # the times between which it holds
    begin, at = _time_at(der, at)
    return Validity(begin, _time_at(der, at)[0])


def _time_at(der: bytes, at: int) -> tuple[datetime, int]:
    """A time, and where it ends."""
    tag, begin, end = _element(der, at)
    if tag not in (_UTC_TIME, _TIME):
        raise ValueError("a certificate without its end")
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        # Two figures of a year are of 1950 to 2049.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC), end


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, begin and end of what the element at `at` holds. Raises IndexError where it ends."""
    tag, size, begin = der[at], der[at + 1], at + 2
    if size & 0x80:
        of_size = size & 0x7F
        size = int.from_bytes(der[begin : begin + of_size], "big")
        begin += of_size
    if begin + size > len(der):
        raise IndexError
    return tag, begin, begin + size
