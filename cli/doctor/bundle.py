"""`aerobee doctor --bundle`: one file for a bug report, without secrets.

It holds the findings, the settings that count and where they come from, versions, what name servers
tell, readiness and metrics of the broker if it answers, and the last lines of its log if that is
known. Every text passes `redaction.py`.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import io
import json
import os
import platform
import ssl
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from aerobee import __version__
from aerobee.cli.doctor.findings import Machine
from aerobee.cli.doctor.redaction import HIDDEN, Redaction
from aerobee.cli.doctor.survey import Survey, Told, route_text
from aerobee.cli.documents.doctor import Examination
from aerobee.cli.printing.output import CommandFailed
from aerobee.config.loading.load import Loaded
from aerobee.config.model import SETTINGS, Settings
from aerobee.config.ports import reachable
from aerobee.config.settings.setting import toml_value

_LOG_BYTES: Final = 1 << 20
_ANSWER_BYTES_MAX: Final = 32 << 20
_HTTP_TIMEOUT_S: Final = 5.0
_LIBRARIES: Final = ("uvloop", "msgspec", "msgpack", "crcmod-plus", "prometheus-client", "h11")


def write_bundle(
    path: Path,
    *,
    examination: Examination,
    loaded: Loaded,
    found: Survey | None,
    machine: Machine,
    log: Path | None,
    redaction: Redaction,
) -> list[str]:
    """Write the file, which its owner alone may read; the names of its members. Raises
    CommandFailed when it cannot be written, or exists."""
    settings = loaded.settings
    members: dict[str, str] = {
        "findings.json": _json(redaction.value(msgspec.to_builtins(examination))),
        "version.txt": _versions(),
        "settings.toml": _settings(loaded),
    }
    if found is not None:
        members["routes.json"] = _json(redaction.value(_told(found)))
    for name, page in (("ready.json", "/ready"), ("metrics.txt", "/metrics")):
        members[name] = _page(settings, page)
    members["log.txt"] = _log(log, machine)
    texts = {name: redaction.text(text) for name, text in members.items()}
    _write(path, texts)
    return list(texts)


def _write(path: Path, texts: dict[str, str]) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CommandFailed(f"{path} exists: nothing was written") from None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, text in texts.items():
                content = text.encode("utf-8", "replace")
                member = tarfile.TarInfo(f"aerobee-doctor/{name}")
                member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
                tar.addfile(member, io.BytesIO(content))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from None


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _versions() -> str:
    from aerobee.native.form import wish_text

    lines = [
        f"aerobee {__version__} ({wish_text()})",
        f"python {sys.version.split()[0]} {platform.python_implementation()}",
        f"system {platform.platform()}",
        f"processors {os.cpu_count()}",
    ]
    for name in _LIBRARIES:
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name} is not installed")
    return "\n".join(lines) + "\n"


def _settings(loaded: Loaded) -> str:
    """Every setting with its value and its origin; those with the default are comments."""
    lines: list[str] = [f"# warning: {text}" for text in loaded.warnings]
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            lines.append(f"\n[{section}]")
        origin, value = loaded.origins[setting.name], loaded.settings.value_of(setting)
        shown = toml_value(HIDDEN if setting.secret and value else value)
        if origin.source == "default":
            lines.append(f"#{setting.key} = {shown}")
        else:
            lines.append(f"{setting.key} = {shown}  # {origin.text}")
    return "\n".join(lines) + "\n"


def _told(found: Survey) -> dict[str, Any]:
    return {
        "name_servers": {
            server: {
                "brokers": {
                    name: {str(number): where for number, where in broker.addresses.items()}
                    for name, broker in one.cluster.brokers.items()
                },
                "clusters": one.cluster.clusters,
                "topics": len(one.topics),
            }
            if isinstance(one, Told)
            else {"error": str(one)}
            for server, one in found.told.items()
        },
        "routes": {
            topic: {server: route_text(one) for server, one in by_server.items()}
            for topic, by_server in found.routes.items()
        },
    }


def _page(settings: Settings, page: str) -> str:
    """A page of the broker's HTTP port, or the reason why it is missing."""
    if not settings.http_enabled or not settings.http_port:
        return "the HTTP port is off in these settings\n"
    host, port = reachable(settings.http_host), settings.http_port
    connection: http.client.HTTPConnection
    if settings.tls_mode == "enforcing":
        # It is this machine's own broker, and nothing secret is sent to it.
        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname = False
        unchecked.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            host, port, timeout=_HTTP_TIMEOUT_S, context=unchecked
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_HTTP_TIMEOUT_S)
    try:
        with closing(connection):
            connection.request("GET", page)
            return connection.getresponse().read(_ANSWER_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{port}{page} does not answer: {error}\n"


def _log(named: Path | None, machine: Machine) -> str:
    """The end of the log: of the file that was named, or where the broker's standard error goes."""
    path = named if named is not None else _standard_error(machine)
    if path is None:
        return (
            "where the log goes is not known: journalctl -u aerobee -n 2000 > FILE, and then "
            "--log FILE\n"
        )
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError as error:
        if named is not None:
            raise CommandFailed(f"{path} cannot be read: {error.strerror}") from None
        return f"{path} cannot be read: {error.strerror}\n"
    # The first line may lack its beginning, and with it the name before a secret.
    return text.partition("\n")[2] if size > _LOG_BYTES else text


def _standard_error(machine: Machine) -> Path | None:
    if machine.pid is None:
        return None
    try:
        path = Path(os.readlink(machine.root / f"proc/{machine.pid}/fd/2"))
    except OSError:
        return None
    return path if path.is_file() else None


def names_text(members: list[str]) -> Iterator[str]:
    """Sentences about a bundle, for people."""
    yield f"it holds {', '.join(members)}"
    yield "passwords, keys and tokens are taken out; look through it before you give it away"
