"""Addresses in record form: 4 or 16 address bytes, then the port as i32 (protocol/WIRE.md 6.1)."""

import socket
import struct
from functools import lru_cache

from aerobee.protocol.message.record_layout import V4_HOST_BYTES, V6_HOST_BYTES

_PORT = struct.Struct(">i")


@lru_cache(maxsize=1024)
def pack_host(ip: str, port: int) -> bytes:
    """A host in record form: 4 or 16 address bytes and the port as i32.

    An IPv4 address mapped into IPv6 (::ffff:1.2.3.4, what a dual-stack socket reports) is stored as
    IPv4, as Java does. A scope (`%eth0`) is dropped. Raises ValueError when `ip` is no address.
    """
    if ":" not in ip:
        return _inet(socket.AF_INET, ip) + _PORT.pack(port)
    address = _inet(socket.AF_INET6, ip.partition("%")[0])
    if address.startswith(b"\0" * 10 + b"\xff\xff"):
        address = address[12:]
    return address + _PORT.pack(port)


def _inet(family: int, ip: str) -> bytes:
    try:
        return socket.inet_pton(family, ip)
    except OSError as error:
        raise ValueError(f"{ip!r} is not an IP address") from error


@lru_cache(maxsize=1024)
def unpack_host(host: bytes) -> tuple[str, int]:
    """(ip, port) of a host in record form; ValueError unless it is 8 or 20 bytes long."""
    if len(host) == V4_HOST_BYTES:
        ip = socket.inet_ntop(socket.AF_INET, host[:4])
    elif len(host) == V6_HOST_BYTES:
        ip = socket.inet_ntop(socket.AF_INET6, host[:16])
    else:
        raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")
    return ip, int(_PORT.unpack_from(host, len(host) - 4)[0])
