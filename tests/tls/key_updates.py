"""Records of TLS 1.3 that Python's `ssl` does not send: updates of keys (RFC 8446, 4.6.3).

The client's secret comes from the log of keys that its context was told to write.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CIPHER: Final = "TLS_AES_256_GCM_SHA384"
_HASH: Final = hashlib.sha384
_KEY_BYTES, _IV_BYTES, _TAG_BYTES = 32, 12, 16
_HANDSHAKE, _DATA = 22, 23
_KEY_UPDATE: Final = 24


class ClientRecords:
    """The records that a client seals, from its first record after the handshake on."""

    def __init__(self, keys: Path) -> None:
        """`keys` is the log of keys of one connection, whose cipher is `CIPHER`."""
        [secret] = [
            line.split()[2]
            for line in keys.read_text().splitlines()
            if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")
        ]
        self._use(bytes.fromhex(secret))

    def data(self, data: bytes) -> bytes:
        return self._sealed(_DATA, data)

    def key_update(self, *, answered: bool = False) -> bytes:
        """Returns an update; the records behind it are sealed with the next key. `answered` asks
        the server for its own."""
        record = self._sealed(_HANDSHAKE, bytes([_KEY_UPDATE, 0, 0, 1, answered]))
        self._use(_expand(self._secret, b"traffic upd", _HASH().digest_size))
        return record

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._sequence = 0
        self._cipher = AESGCM(_expand(secret, b"key", _KEY_BYTES))
        self._iv = int.from_bytes(_expand(secret, b"iv", _IV_BYTES), "big")

    def _sealed(self, kind: int, content: bytes) -> bytes:
        nonce = (self._iv ^ self._sequence).to_bytes(_IV_BYTES, "big")
        self._sequence += 1
        size = len(content) + 1 + _TAG_BYTES
        head = bytes([_DATA, 3, 3]) + size.to_bytes(2, "big")
        return head + self._cipher.encrypt(nonce, content + bytes([kind]), head)


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label without a context (RFC 8446, 7.1); `size` is of one block at most."""
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    return hmac.digest(secret, info + b"\x01", _HASH)[:size]
