"""`aerobee doctor`: examines this machine for a broker with these settings, and changes nothing."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from aerobee import __version__
from aerobee.cli.cluster.command_session import security_of
from aerobee.cli.configuration.context_file import apply_context
from aerobee.cli.doctor.certificates import certificates
from aerobee.cli.doctor.clock import clock
from aerobee.cli.doctor.disks import disks
from aerobee.cli.doctor.files import store_files
from aerobee.cli.doctor.findings import Machine, fault, warning
from aerobee.cli.doctor.machine import machine_findings
from aerobee.cli.doctor.ports import ports
from aerobee.cli.doctor.processes import lock_holder
from aerobee.cli.doctor.registration import registration
from aerobee.cli.doctor.survey import Answered, Survey, local_address, survey
from aerobee.cli.documents.doctor import Examination, Finding
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import (
    OK,
    REFUSED,
    USAGE,
    CommandFailed,
    print_table,
    quieten_logs,
    say,
    show,
)
from aerobee.client.connections.session import Session
from aerobee.client.errors import CallerError
from aerobee.client.options import ClientOptions
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.model import Settings
from aerobee.config.ports import reachable

_ORDER: Final = ("fault", "warning", "unknown", "ok")


def examine(parsed: argparse.Namespace) -> int:
    """Print the findings, faults first; code 1 if there is a fault."""
    quieten_logs()
    if parsed.log is not None and parsed.bundle is None:
        raise CommandFailed("--log goes with --bundle", USAGE)
    loaded = load_settings(
        parsed.config, overrides=parsed.set, format=parsed.format, strict=parsed.strict, remote={}
    )
    settings, machine = loaded.settings, Machine()
    machine = machine._replace(pid=lock_holder(machine, Path(settings.store_path)))
    found: Survey | None = None
    findings: list[Finding] = []
    try:
        found = _survey(parsed, settings, is_running=machine.pid is not None)
    except (CallerError, CommandFailed) as error:
        remedy = "correct -n, --credentials or the files of TLS, and examine it again"
        findings.append(fault("name servers", "none asked", str(error), remedy))
    findings += _findings(loaded, machine, found)
    counts = {state: sum(one.state == state for one in findings) for state in _ORDER}
    examination = Examination(
        version=__version__,
        broker=settings.broker_name,
        pid=machine.pid,
        faults=counts["fault"],
        warnings=counts["warning"],
        unknown=counts["unknown"],
        findings=sorted(findings, key=lambda one: _ORDER.index(one.state)),
    )
    _print(examination, as_json=parsed.json)
    if parsed.bundle is not None:
        _bundle(parsed, examination, loaded, found, machine)
    return REFUSED if examination.faults else OK


def _findings(loaded: Loaded, machine: Machine, found: Survey | None) -> Iterator[Finding]:
    settings = loaded.settings
    for text in loaded.warnings:
        where = str(loaded.file or "environment")
        yield warning("settings", where, text, "aerobee config show --origin --changed")
    yield from ports(settings, machine)
    local = None if found is None else found.brokers.get(local_address(settings))
    boot_ms = local.boot_ms if isinstance(local, Answered) else None
    yield from clock(settings, machine, boot_ms=boot_ms)
    yield from disks(settings, machine)
    yield from machine_findings(settings, machine)
    yield from certificates(settings)
    yield from store_files(settings, machine)
    if found is not None:
        yield from registration(found, settings, is_running=machine.pid is not None)
    elif not _name_servers(settings):
        yield warning(
            "name servers", "none", "the settings name no name server, and the broker has none of "
            "its own: no client finds it", "broker.name_servers (namesrvAddr), or nameserver.port",
        )  # fmt: skip


def _survey(parsed: argparse.Namespace, settings: Settings, *, is_running: bool) -> Survey | None:
    """The answers of name servers and brokers; None without any name server to ask. Raises
    CallerError where none can be asked, such as for files of TLS that cannot be used."""
    # The context in use is for asking other brokers; this is about the one of these settings.
    if parsed.context or parsed.name_servers:
        apply_context(parsed)
    servers = parsed.name_servers or _name_servers(settings)
    if not servers:
        return None
    options = ClientOptions(call_timeout_s=parsed.timeout, **_security(parsed, settings))

    async def ask() -> Survey:
        session = Session(servers, options)
        session.start()
        try:
            return await survey(session, settings, is_running=is_running)
        finally:
            await session.close()

    return asyncio.run(ask())


def _name_servers(settings: Settings) -> str:
    """Those that the settings name, or the broker's own."""
    if settings.name_server_list:
        return ";".join(settings.name_server_list)
    if settings.nameserver_enabled and settings.nameserver_port:
        host = reachable(settings.nameserver_host)
        return (
            f"[{host}]:{settings.nameserver_port}"
            if ":" in host
            else (f"{host}:{settings.nameserver_port}")
        )
    return ""


def _security(parsed: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """The account and the encryption that the flags want; without flags for it, TLS is spoken as
    the broker speaks it."""
    wanted = security_of(parsed)
    if wanted["use_tls"] or not (settings.tls_mode == "enforcing" or settings.tls_outgoing):
        return wanted
    return wanted | {
        "use_tls": True,
        "certificate": settings.tls_client_certificate_path or None,
        "certificate_key": settings.tls_client_key_path or None,
        "certificate_password": settings.tls_client_key_password or None,
    }


def _print(examination: Examination, *, as_json: bool) -> None:
    if as_json:
        print_document(examination)
        return
    runs = f"process {examination.pid} runs" if examination.pid else "no broker runs on its store"
    counts = (
        f"{examination.faults} faults, {examination.warnings} warnings, {examination.unknown} "
        f"unknown of {len(examination.findings)} findings"
    )
    show(f"broker {examination.broker}: {runs}; {counts}")
    print_table(
        ("", "check", "subject", "finding"),
        [(one.state, one.check, one.subject, one.text) for one in examination.findings],
    )
    for one in examination.findings:
        if one.remedy is not None and one.state != "ok":
            say(f"{one.state}, {one.check} {one.subject}: {one.remedy}")


def _bundle(
    parsed: argparse.Namespace,
    examination: Examination,
    loaded: Loaded,
    found: Survey | None,
    machine: Machine,
) -> None:
    from aerobee.cli.doctor.bundle import names_text, write_bundle
    from aerobee.cli.doctor.redaction import Redaction, known_secrets, secrets_of_file

    secrets = [*known_secrets(loaded.settings)]
    if parsed.credentials:
        secrets += secrets_of_file(Path(parsed.credentials))
    members = write_bundle(
        Path(parsed.bundle),
        examination=examination,
        loaded=loaded,
        found=found,
        machine=machine,
        log=None if parsed.log is None else Path(parsed.log),
        redaction=Redaction(secrets),
    )
    say(f"{parsed.bundle} is written")
    for text in names_text(members):
        say(text)
