"""Chooses where audit events go, as `audit.target` says."""

from __future__ import annotations

import os

from aerobee.access.audit.sink import Sink


def make_sink(
    target: str, folder: str | os.PathLike[str], most_bytes: int, *, makes_parents: bool = False
) -> Sink:
    """The sink of a target, `file` or `journal`; `folder` is for files."""
    if target == "journal":
        from aerobee.access.audit.journal import Journal

        return Journal()
    from aerobee.access.audit.audit_file import AuditFile

    return AuditFile(folder, most_bytes, makes_parents=makes_parents)
