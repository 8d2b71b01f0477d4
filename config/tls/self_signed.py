"""A certificate for trying TLS out, made at the start and kept nowhere (`tls.test.mode.enable`).

RocketMQ's test mode does the same. It proves nothing: whoever does not check certificates, as Java
clients do not unless told to, is served with it.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aerobee.config.errors import ConfigError

_MISSING: Final = (
    "no certificate is given, and to make one for trying out the package cryptography is needed: "
    "pip install 'aerobee[selfsigned]', or give tls.server.certPath and tls.server.keyPath"
)
_NAME: Final = "aerobee self-signed"
_DAY: Final = datetime.timedelta(days=1)
_DAYS: Final = 3650


def load_self_signed(contexts: Iterable[ssl.SSLContext]) -> None:
    """Give all of them a new certificate and its key. Raises ConfigError without the package."""
    text = self_signed()
    # `ssl` reads files only. The directory is this user's alone, and gone in a moment.
    with tempfile.TemporaryDirectory(prefix="aerobee-tls-") as directory:
        path = Path(directory, "both.pem")
        path.write_bytes(text)
        for context in contexts:
            context.load_cert_chain(path)


def self_signed() -> bytes:
    """Certificate and key, PEM, on the curve P-256. Raises ConfigError without the package."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError("tls.mode", "", _MISSING) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAYS * _DAY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(pem) + private
