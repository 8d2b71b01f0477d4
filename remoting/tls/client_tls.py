"""TLS at the calling end, as Java's clients have it (protocol/WIRE.md 7.2).

The server's certificate is checked only if a file of trusted ones is given, and names never, since
brokers are known by their addresses. Servers take TLS and plain connections on the same port.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

from aerobee.remoting.connection_stats import CloseReason

#: How a connection ends that the peer closes without saying why.
WITHOUT_A_WORD: Final = (CloseReason.PEER, CloseReason.RESET)


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
    """`trust_store` is a PEM file of trusted certificates. Raises OSError (which ssl.SSLError
    is, too) when it cannot be read or holds no certificate, and the errors of `show`."""
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


def what_it_may_miss(
    *, speaks_tls: bool, shows_certificate: bool, tls: str, certificate: str, key: str = ""
) -> str:
    """Says why a peer may have closed a connection before it answered. `tls`, `certificate` and
    `key` name the options by which the caller's user gives them."""
    if not speaks_tls:
        return f"does it take nothing but TLS? {tls} speaks it"
    if not shows_certificate:
        pair = f"{certificate} with {key}" if key else certificate
        return f"does it ask for a certificate? {pair} shows one"
    return f"does it trust the certificate that {certificate} has? its log says why it closes one"
