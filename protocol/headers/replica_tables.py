"""REPLICA_TABLES (31021): the tables of a master, for its slaves (WIRE.md 9).

A field of the request has the name of a table, and the version of it that the slave has, "" for
none; tables without a field are not asked for. The answer has the present versions in the same
fields, and the tables that have another one in its body:

    for each table: name length u8, name, size u32, the table

A table that has no field in the answer found no room there, and `more` says so: the slave asks
again at once. A version means nothing but that the table is the same as it was.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.fields import Header, Int64

TOPICS: Final = "topics"
GROUPS: Final = "groups"
OFFSETS: Final = "offsets"
DELAYS: Final = "delays"
TIMER: Final = "timer"
STAGES: Final = "stages"
DELETIONS: Final = "deletions"
#: In the order in which they find room in an answer.
TABLES: Final = (TOPICS, GROUPS, DELETIONS, OFFSETS, DELAYS, TIMER, STAGES)

_VERSION_CHARS = 64
_SIZE = struct.Struct(">I")


class ReplicaTablesResponse(Header):
    """The tables were copied while the end of the log was between these two log offsets: they know
    of nothing behind the second, and of all before the first. `log_first` is where the master's
    log begins; None from a master that does not tell."""

    log_begin: Int64
    log_end: Int64
    more: bool = False
    log_first: Int64 | None = None


def versions_of(ext: Mapping[str, str]) -> dict[str, str]:
    """The versions in the fields of a request or an answer, by table. Raises BadRequest (code 1)
    for a text that no version has."""
    versions = {name: ext[name] for name in TABLES if name in ext}
    for name, version in versions.items():
        if len(version) > _VERSION_CHARS:
            raise BadRequest.system_error(f"the field {name} is no version of a table")
    return versions


def encode_tables(tables: Iterable[tuple[str, bytes]]) -> bytes:
    """The body of an answer."""
    parts: list[bytes] = []
    for name, table in tables:
        parts += (bytes((len(name),)), name.encode(), _SIZE.pack(len(table)), table)
    return b"".join(parts)


def decode_tables(body: bytes) -> dict[str, bytes]:
    """The tables of a body by name. Raises BadRequest (code 1) for another form, and for names that
    no table has."""
    tables: dict[str, bytes] = {}
    at = 0
    while at < len(body):
        named = at + 1 + body[at]
        begin = named + _SIZE.size
        name = body[at + 1 : named].decode("ascii", "replace")
        size = _SIZE.unpack_from(body, named)[0] if begin <= len(body) else -1
        if size < 0 or begin + size > len(body) or name not in TABLES or name in tables:
            raise BadRequest.system_error("the tables of the master cannot be read")
        tables[name] = body[begin : begin + size]
        at = begin + size
    return tables
