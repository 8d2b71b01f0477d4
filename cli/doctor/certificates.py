"""Examines the certificates and keys that a broker's settings name."""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aerobee.cli.doctor.findings import fault, ok, unknown, warning
from aerobee.cli.documents.doctor import Finding
from aerobee.config.errors import ConfigError
from aerobee.config.model import BY_NAME, Settings
from aerobee.config.tls.certificates import outgoing_context, server_certificates, validity

_CHECK: Final = "certificate"
_SOON_DAYS: Final = 30
_FILE_BYTES_MAX: Final = 1 << 20
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_CERTIFICATES: Final = (
    *("tls_certificate_path", "tls_trust_path"),
    *("tls_client_certificate_path", "tls_client_trust_path"),
)
_KEYS: Final = ("tls_key_path", "tls_client_key_path")


def certificates(
    settings: Settings, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Iterator[Finding]:
    """Whether they make a context of TLS, how long each holds, and who may read the keys."""
    speaks_tls = settings.takes_tls or settings.tls_outgoing
    given = [name for name in (*_CERTIFICATES, *_KEYS) if getattr(settings, name)]
    if not speaks_tls and not given:
        yield ok(_CHECK, "tls", "the settings have no TLS")
        return
    yield from _usable(settings)
    for name in _CERTIFICATES:
        if path := getattr(settings, name):
            yield from _times(BY_NAME[name].full_key, path, now())
    for name in _KEYS:
        if path := getattr(settings, name):
            yield from _rights(BY_NAME[name].full_key, path)


def _usable(settings: Settings) -> Iterator[Finding]:
    """Read all as a start does: whether each key fits its certificate is found out by that."""
    try:
        found = server_certificates(settings)
        outgoing_context(settings)
    except ConfigError as error:
        yield fault(_CHECK, error.value or error.key, str(error), f"correct {error.key}")
        return
    except ImportError:
        text = "a certificate for trying out would be made, and the library for that is missing"
        yield fault(
            _CHECK, "tls", text, "pip install 'aerobee[selfsigned]', or tls.certificate_path"
        )
        return
    if found is not None:
        of_its_own = "" if settings.tls_certificate_path else " (one for trying out, made anew)"
        yield ok(_CHECK, "tls", f"certificates and keys fit each other{of_its_own}")


def _times(setting: str, path: str, now: datetime) -> Iterator[Finding]:
    """When each certificate of a file holds: the first is shown or trusted, those after it are of
    its issuers."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(_FILE_BYTES_MAX)
        found = [validity(ssl.PEM_cert_to_DER_cert(one[0])) for one in _PEM.finditer(text)]
    except (OSError, ValueError) as error:
        yield unknown(_CHECK, path, f"{setting}: its times cannot be read: {error}")
        return
    if not found:
        yield fault(_CHECK, path, f"{setting}: no certificate in PEM", f"correct {setting}")
        return
    begin, end = max(one.begin for one in found), min(one.end for one in found)
    which = f"{setting}: " if len(found) == 1 else f"{setting}, the first to end of {len(found)}: "
    days = (end - now).days
    renew = f"renew it, replace {path}, and reload the broker (SIGHUP)"
    if begin > now:
        text = f"{which}it holds from {begin:%Y-%m-%d %H:%M} UTC on only"
        yield fault(_CHECK, path, text, "set the clock right, or take one that holds now")
    elif end <= now:
        yield fault(_CHECK, path, f"{which}it has ended at {end:%Y-%m-%d %H:%M} UTC", renew)
    elif days < _SOON_DAYS:
        yield warning(_CHECK, path, f"{which}{days} days are left ({end:%Y-%m-%d} UTC)", renew)
    else:
        yield ok(_CHECK, path, f"{which}{days} days are left ({end:%Y-%m-%d} UTC)")


def _rights(setting: str, path: str) -> Iterator[Finding]:
    try:
        found = Path(path).stat()
    except OSError as error:
        yield unknown(_CHECK, path, f"{setting}: {error.strerror}")
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        text = f"{setting}: others may read or change the key (mode {mode:04o})"
        yield fault(_CHECK, path, text, f"chmod 640 {path}")
    elif not os.access(path, os.R_OK):
        yield unknown(_CHECK, path, f"{setting}: this user may not read it; the broker's may")
    else:
        yield ok(_CHECK, path, f"{setting}: its mode is {mode:04o}")
