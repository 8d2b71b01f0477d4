"""TLS at the calling end, as Java's clients have it (protocol/WIRE.md 7.2).

The server's certificate is checked only if a file of trusted ones is given, and names never, since
brokers are known by their addresses. Servers take TLS and plain connections on the same port.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ShownCertificate:
    """A client's own certificate, for servers that ask for one: PEM files, of which the first may
    hold the key too."""

    path: str
    key_path: str | None = None
    password: str | None = field(default=None, repr=False)


def client_context(
    trust_store: str | None, shown: ShownCertificate | None = None
) -> ssl.SSLContext:
    """`trust_store` is a PEM file of trusted certificates; OSError (ssl.SSLError is one) when it
    cannot be read or holds none, and what `show` raises."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if trust_store is not None:
        context.load_verify_locations(trust_store)
        context.verify_mode = ssl.CERT_REQUIRED
    if shown is not None:
        show(context, shown)
    return context


def show(context: ssl.SSLContext, shown: ShownCertificate) -> None:
    """Have a client's own certificate shown. OSError or ValueError when its files are no such."""
    # A text, even an empty one: without it OpenSSL would ask whoever sits at the terminal.
    context.load_cert_chain(shown.path, shown.key_path, shown.password or "")
