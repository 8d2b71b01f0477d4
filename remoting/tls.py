"""TLS at the calling end, as Java's clients have it (protocol/WIRE.md 7.2).

The server's certificate is checked only if a file of trusted ones is given, and names never, since
brokers are known by their addresses. Servers take TLS and plain connections on the same port.
"""

import ssl


def client_context(trust_store: str | None) -> ssl.SSLContext:
    """`trust_store` is a PEM file of trusted certificates; OSError (ssl.SSLError is one) when it
    cannot be read or holds none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if trust_store is not None:
        context.load_verify_locations(trust_store)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
