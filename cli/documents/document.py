"""The base of the documents, and how they are printed.

One thing has one name in all documents: `group`, `topic`, `broker`, `queue`, `lag`. Times are
`..._timestamp_ms`, spans `..._s` or `..._ms`, sizes `..._bytes`. A number that nobody knows is
null, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aerobee.cli.printing.output import print_json


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A document, or a part of a document. Its docstring stands in the schema."""


def print_document(document: Document | Sequence[Document], *, compact: bool = False) -> None:
    """Print one document or a list of them; `compact`: a line of a stream, flushed at once."""
    print_json(msgspec.to_builtins(document), compact=compact)
