"""Documents about the fitness of a machine."""

from __future__ import annotations

from typing import Literal

from aerobee.cli.documents.document import Document

State = Literal["ok", "warning", "fault", "unknown"]


class Finding(Document, frozen=True, kw_only=True):
    """One thing that was examined."""

    #: The kind, such as port, disk or clock.
    check: str
    #: The thing itself, such as a path or an address.
    subject: str
    #: unknown: it could not be found out, and the text says why.
    state: State
    text: str
    #: A command, or a setting to change; null where nothing has to be done.
    remedy: str | None


class Examination(Document, frozen=True, kw_only=True):
    """The answer of `aerobee doctor`."""

    version: str
    broker: str
    #: The process that has the store open; null while no broker runs on it, or nobody can tell.
    pid: int | None
    faults: int
    warnings: int
    unknown: int
    findings: list[Finding]
