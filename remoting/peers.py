"""Addresses of the other end in one form, and guesses at the protocol of a foreign peer."""

from __future__ import annotations

from typing import Any

from aerobee.remoting.connection_stats import CloseReason

_HTTP_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PATC", b"PRI ")
# The first bytes of what a server of that protocol answers.
_HTTP_ANSWER = b"HTTP"
# A TLS hello: record type 22, version 3.x.
_TLS_HELLO = b"\x16\x03"
_MAPPED = "::ffff:"


def plain_address(socket_address: Any) -> tuple[str, int]:
    """(address, port) of a socket address, the same text for the same peer.

    A dual-stack listener shows IPv4 peers as `::ffff:1.2.3.4`: they are IPv4 here. A link-local
    IPv6 address loses its scope, which the stored host fields cannot hold.
    """
    host, port = socket_address[0], socket_address[1]
    if ":" in host:
        host = host.partition("%")[0]
        if host.lower().startswith(_MAPPED) and "." in host:
            host = host[len(_MAPPED) :]
    return host, port


def address_text(address: tuple[str, int]) -> str:
    """`host:port`, the host in brackets where it has colons itself."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def naming(address: str, text: str) -> str:
    """A text about a peer, with its address in front where the text does not name it."""
    return text if address in text else f"{address}: {text}"


def foreign_protocol(head: bytes) -> CloseReason:
    """Guesses the protocol of a connection from first bytes that are no frame of ours."""
    if head.startswith((*_HTTP_METHODS, _HTTP_ANSWER)):
        return CloseReason.HTTP
    if head.startswith(_TLS_HELLO):
        return CloseReason.TLS
    return CloseReason.BAD_FRAME
