"""Chooses where audit events go, as `audit.target` says."""

from __future__ import annotations

import os
from collections.abc import Callable

from aerobee.access.audit.sink import Sink


def make_sink(
    target: str,
    folder: str | os.PathLike[str],
    most_bytes: int,
    *,
    root: str | os.PathLike[str] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Sink:
    """The sink of a target, `file` or `journal`; the rest is for files (`AuditFile`)."""
    if target == "journal":
        from aerobee.access.audit.journal import Journal

        return Journal()
    from aerobee.access.audit.audit_file import AuditFile

    return AuditFile(folder, most_bytes, root=root, check=check)
