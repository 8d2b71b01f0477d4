"""Until when a certificate holds, read from its bytes (X.509, RFC 5280 section 4.1): Python's own
`ssl` tells it only of a peer's that it has checked, and a certificate of ours is never that."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# Tags of DER: the version, which may be left out, and the two ways to write a time.
_VERSION, _UTC_TIME, _TIME = 0xA0, 0x17, 0x18


def expiry(pem: str) -> datetime:
    """The end of the first certificate in a text, which the server shows; those after it belong to
    its issuers. Raises ValueError when the text holds no certificate."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("no certificate in PEM")
    try:
        return _end_of(ssl.PEM_cert_to_DER_cert(found[0]))
    except IndexError:
        raise ValueError("a certificate that is cut off") from None


def _end_of(der: bytes) -> datetime:
    _, at, _ = _element(der, 0)  # the certificate
    _, at, _ = _element(der, at)  # what is signed of it
    tag, _, end = _element(der, at)
    if tag == _VERSION:
        at = end
    for _ in range(3):  # serial number, algorithm, issuer
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)  # the times between which it holds
    _, _, at = _element(der, at)
    tag, begin, end = _element(der, at)
    if tag not in (_UTC_TIME, _TIME):
        raise ValueError("a certificate without its end")
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        # Two figures of a year are of 1950 to 2049.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


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
