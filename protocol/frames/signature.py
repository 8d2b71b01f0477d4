"""Signing a request for brokers with access control (protocol/WIRE.md 7.1).

    Signature = base64(HMAC-SHA1(secret key, values of all ext fields in the order of their keys,
                                 without separators, then the body))

`Signature` itself is left out, `AccessKey` is in. The values are signed as they are sent.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"


def signed(ext: Mapping[str, str], body: bytes, access_key: str, secret_key: str) -> dict[str, str]:
    """The ext fields with access key and signature added."""
    fields = {**ext, ACCESS_KEY: access_key}
    fields[SIGNATURE] = signature(fields, body, secret_key)
    return fields


def signature(ext: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """What `Signature` must be for these fields and this body."""
    values = "".join([ext[key] for key in sorted(ext) if key != SIGNATURE])
    digest = hmac.new(secret_key.encode(), values.encode() + body, hashlib.sha1).digest()
    return base64.b64encode(digest).decode()
