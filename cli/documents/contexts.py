"""Documents about named connections."""

from __future__ import annotations

from aerobee.cli.documents.document import Document


class ContextEntry(Document, frozen=True, kw_only=True):
    """A named connection in `aerobee context list` and `show`."""

    context: str
    #: Whether commands use it that name no other connection.
    is_current: bool
    name_servers: list[str]
    #: The ports where brokers take administrators' requests.
    admin_addresses: list[str]
    #: The file with the account; null where the environment's, or no account, is used.
    credentials_file: str | None
    tls: bool
    trust_store: str | None
    certificate: str | None
    certificate_key: str | None
