"""Who a client says it is, and how its connections are kept from others: ACL and TLS.

Both are for brokers that ask for it, as Apache RocketMQ's can (protocol/WIRE.md 7); ours ignore
signatures and take no TLS. Chosen once, when a client is made.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

from aerobee.client.errors import CallerError
from aerobee.client.options import ClientOptions
from aerobee.protocol.frames.signature import signed
from aerobee.remoting.tls import client_context

Signer = Callable[[Mapping[str, str], bytes], dict[str, str]]


def make_signer(options: ClientOptions) -> Signer | None:
    """Adds access key and signature to a request's fields, given its body; None without keys."""
    access_key, secret_key = options.access_key, options.secret_key
    if access_key is None and secret_key is None:
        return None
    if access_key is None or secret_key is None:
        raise CallerError("access_key and secret_key belong together; only one is given")
    return lambda ext, body: signed(ext, body, access_key, secret_key)


def make_tls(options: ClientOptions) -> ssl.SSLContext | None:
    """What connections are made with; None for plain ones. CallerError for a bad trust store."""
    if not options.use_tls:
        if options.trust_store is not None:
            raise CallerError("trust_store is for use_tls=True")
        return None
    try:
        return client_context(options.trust_store)
    except OSError as error:
        raise CallerError(
            f"trust store {options.trust_store!r} cannot be read as a PEM file of certificates: "
            f"{error.strerror or error}"
        ) from error
