"""An authority of tests: certificates of every kind, made where they are wanted."""

from __future__ import annotations

import contextlib
import datetime
import ssl
import warnings
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Pair:
    """Files of one certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, and writes them below a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._signed(self._name, self._key, days=3650, authority=True)
        self.certificate = directory / f"{name}.pem"
        self.certificate.write_bytes(certificate.public_bytes(_PEM))

    def pair(self, name: str, *, password: str = "", days: int = 365) -> Pair:
        """A certificate of this name; `days` below 0 has it expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key, days=days, authority=False)
        found = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        encryption = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        found.certificate.write_bytes(certificate.public_bytes(_PEM))
        found.key.write_bytes(
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return found

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int, authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        end = now + days * _DAY
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - _DAY)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


def client(authority: Authority | None = None, pair: Pair | None = None) -> ssl.SSLContext:
    """A client that trusts this authority (None: everybody), and shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if authority is not None:
        context.load_verify_locations(authority.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def hello(context: ssl.SSLContext | None = None) -> bytes:
    """The first flight of a client."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    side = (context or client()).wrap_bio(to_client, to_server)
    with contextlib.suppress(ssl.SSLWantReadError):
        side.do_handshake()
    return to_server.read()


def old_client(version: ssl.TLSVersion) -> ssl.SSLContext:
    """A client that speaks one version below 1.2."""
    context = client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = context.maximum_version = version
    return context
