"""Documents about what administrators have changed."""

from __future__ import annotations

from aerobee.cli.documents.document import Document


class AuditRecord(Document, frozen=True, kw_only=True):
    """An event in `aerobee audit`. A text that is not known, or does not apply, is null."""

    timestamp_ms: int
    #: The broker that was asked; null for a name server's event.
    broker: str | None
    #: Its number, 0 for a master; null for a name server's event.
    broker_id: int | None
    #: The address of the name server that was asked; null for a broker's event.
    name_server: str | None
    #: Such as topic_delete.
    request: str
    #: The topic, group, account or setting that was to be changed.
    object: str | None
    #: The access key; null where no account was asked for, or none was known.
    account: str | None
    address: str | None
    #: Language and version of the client.
    client: str | None
    before: str | None
    after: str | None
    #: done, refused, failed, or unknown where the process ended before it was written; null for a
    #: change under way.
    outcome: str | None
    #: The reason of another outcome than done.
    why: str | None
    #: Equal requests that were refused one after the other are one event; this is their number.
    times: int
