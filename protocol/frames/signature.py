"""Signing a request for brokers with access control (protocol/WIRE.md 7.1).

    Signature = base64(HMAC-SHA1(secret key, values of all ext fields in the order of their keys,
                                 without separators, then the body))

`Signature` itself is left out, `AccessKey` is in. The values are signed as they are sent. Java
clients before 4.9.4 leave `_UNIQUE_KEY_QUERY` out as well.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
# The ordinal of 4.9.4's first snapshot less one: up to it, the field above is not signed.
_LAST_WITHOUT = 399
# The block of SHA-1; HMAC begins with as many bytes of key (RFC 2104).
_BLOCK_BYTES = 64


class Signer:
    """A secret key as its two states of SHA-1, which a signature begins with copies of: what takes
    a key each time takes four times as long."""

    __slots__ = ("_inner", "_outer", "blocks")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha1(key).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        #: The first block of both states, inner and outer, for callers that keep their own states.
        self.blocks = bytes(byte ^ 0x36 for byte in key), bytes(byte ^ 0x5C for byte in key)
        self._inner, self._outer = map(hashlib.sha1, self.blocks)

    def signature(self, ext: Mapping[str, str], body: bytes) -> str:
        """The value that `Signature` must have for these fields and this body."""
        return self.sign(signed_values(ext) + body).decode()

    def sign(self, content: bytes) -> bytes:
        """The signature of `signed_values` and a body, for whoever has put them together."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return base64.b64encode(outer.digest())

    def signed(self, ext: Mapping[str, str], body: bytes, access_key: str) -> dict[str, str]:
        """The ext fields with access key and signature added."""
        fields = {**ext, ACCESS_KEY: access_key}
        fields[SIGNATURE] = self.signature(fields, body)
        return fields

    def has_signed(self, ext: Mapping[str, str], body: bytes, version: int) -> bool:
        """Whether a request carries the signature of this key; `version` is its sender's ordinal.

        Compared in constant time. A signature that is missing fits no key.
        """
        given = ext.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
        if version <= _LAST_WITHOUT and UNIQUE_KEY_QUERY in ext:
            ext = {key: value for key, value in ext.items() if key != UNIQUE_KEY_QUERY}
        return hmac.compare_digest(self.signature(ext, body).encode(), given)


def signed_values(ext: Mapping[str, str]) -> bytes:
    """The signed part of the fields: their values in the order of their keys."""
    values = "".join([ext[key] for key in sorted(ext) if key != SIGNATURE])
    return values.encode("utf-8", "surrogatepass")


def signed(ext: Mapping[str, str], body: bytes, access_key: str, secret_key: str) -> dict[str, str]:
    """Return `ext` with access key and signature, for a caller that signs seldom."""
    return Signer(secret_key).signed(ext, body, access_key)
