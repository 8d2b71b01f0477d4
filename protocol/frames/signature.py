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


def signed(ext: Mapping[str, str], body: bytes, access_key: str, secret_key: str) -> dict[str, str]:
    """The ext fields with access key and signature added."""
    fields = {**ext, ACCESS_KEY: access_key}
    fields[SIGNATURE] = signature(fields, body, secret_key)
    return fields


def is_signed(ext: Mapping[str, str], body: bytes, secret_key: str, version: int) -> bool:
    """Whether a request carries the signature of a secret key; `version` is its sender's ordinal.

    Compared in constant time. A signature that is missing fits no key.
    """
    given = ext.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
    if version <= _LAST_WITHOUT and UNIQUE_KEY_QUERY in ext:
        ext = {key: value for key, value in ext.items() if key != UNIQUE_KEY_QUERY}
    return hmac.compare_digest(signature(ext, body, secret_key).encode(), given)


def signature(ext: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """What `Signature` must be for these fields and this body."""
    values = "".join([ext[key] for key in sorted(ext) if key != SIGNATURE])
    digest = hmac.new(secret_key.encode(), values.encode() + body, hashlib.sha1).digest()
    return base64.b64encode(digest).decode()
