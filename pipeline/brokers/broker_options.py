"""The options of the topic source and the topic sink that say how to reach the brokers.

All options may be written with the prefix `rocketmq.` as well, as users of RocketMQ's own connector
are used to; `rocketmq.namesrv.addr` is nameServer. Without it the name servers are those of the
environment, as for RocketMQ's own clients: of the driver's, where options are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aerobee.address_list import address_list
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.option_map import OptionMap
from aerobee.remoting.calling.blocking_caller import ConnectOptions
from aerobee.remoting.tls.client_tls import ShownCertificate, client_context

ACCESS_OPTIONS: Final = (
    "nameServer", "accessKey", "secretKey", "useTls", "trustStore",
    "certificate", "certificateKey", "certificatePassword",
)  # fmt: skip
#: The variable of the environment with the name servers, where no option names them.
NAME_SERVERS: Final = "NAMESRV_ADDR"
_SECRETS: Final = ("accessKey", "secretKey", "certificatePassword")
_PREFIX: Final = "rocketmq."


@dataclass(frozen=True, slots=True)
class Access:
    """Name servers in the order given, and how to talk to a peer.

    It travels to the executors inside pickled readers and writers; its text has no secrets.
    """

    name_servers: tuple[str, ...]
    manner: ConnectOptions


def topic_options(
    given: Mapping[str, str], known: Iterable[str], foreign: Callable[[str], str | None]
) -> OptionMap:
    """The options given to `format("rocketmq")`. Raises OptionError for an unknown option, with the
    words of `foreign` about it."""
    names = list(known)
    aliases = {_PREFIX + name: name for name in names} | {_PREFIX + "namesrv.addr": "nameServer"}
    return OptionMap(given, names, aliases=aliases, secrets=_SECRETS, foreign=foreign)


def read_access(options: OptionMap, timeout_s: float = 3.0) -> Access:
    """Read ACCESS_OPTIONS; `timeout_s` is for one request."""
    name_servers = _addresses(options)
    access_key, secret_key = options.text("accessKey"), options.text("secretKey")
    if (access_key is None) != (secret_key is None):
        raise OptionError("options accessKey and secretKey belong together; only one is given")
    use_tls = options.boolean("useTls", False)
    for name in ("trustStore", "certificate", "certificateKey"):
        if name in options and not use_tls:
            raise OptionError(f"option {name} is for useTls=true")
    _check_trust_store(options)
    trust_store, shown = options.text("trustStore"), _certificate(options)
    manner = ConnectOptions(timeout_s, use_tls, trust_store, access_key, secret_key, shown)
    return Access(name_servers, manner)


def _certificate(options: OptionMap) -> ShownCertificate | None:
    """The files of the certificate to show, read here once as the trust store is."""
    path = options.text("certificate")
    if path is None:
        if "certificateKey" in options:
            raise OptionError("option certificateKey needs the option certificate beside it")
        return None
    password = options.text("certificatePassword")
    shown = ShownCertificate(path, options.text("certificateKey"), password)
    try:
        client_context(None, shown)
    except (OSError, ValueError) as error:
        raise options.wrong(
            "certificate", f"cannot be read as PEM, with its key: {error}"
        ) from None
    return shown


def _check_trust_store(options: OptionMap) -> None:
    """Read the file here once, so that the error of a wrong path names the option."""
    path = options.text("trustStore")
    if path is None:
        return
    try:
        client_context(path)
    except OSError as error:
        raise options.wrong(
            "trustStore", f"cannot be read as a PEM file of certificates: {error}"
        ) from error


def _addresses(options: OptionMap) -> tuple[str, ...]:
    text = options.text("nameServer")
    if text is None:
        text = os.environ.get(NAME_SERVERS, "")
    if not text.strip():
        raise OptionError(
            f"option nameServer is required, or {NAME_SERVERS} in the environment of the driver"
        )
    found = address_list(text)
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise options.wrong("nameServer", "is not host:port, several joined by ; or ,")
    if not found:
        raise options.wrong("nameServer", "names no address")
    return found
