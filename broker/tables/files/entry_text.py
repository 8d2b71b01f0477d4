"""The text of a table of entries as its state file has it, kept so that a change costs little.

The form is that of `pretty` (state_file.py): an entry stands on the second level of the document,
its plain values on the third. The text is kept in blocks of entries, each joined once until one of
its entries changes, and are written as they stand, so that the next save of a table of ten thousand
makes one entry's text, joins some hundred and copies none.
"""

from __future__ import annotations

from json.encoder import JSONEncoder
from typing import Any, Protocol

from aerobee.broker.tables.files.state_file import pretty
from aerobee.protocol.bodies.topics import DataVersion

# Entries of a block: as many as there are blocks in a table of the usual most, 20,000.
_BLOCK = 128
_INDENT = "\n\t\t\t"
_ENCODER = JSONEncoder(ensure_ascii=False, separators=("," + _INDENT, ":"))
_SEPARATOR = b",\n"


class NamedConfig(Protocol):
    """One entry; its JSON holds plain values, keys in ascending order."""

    @property
    def name(self) -> str: ...
    def to_json(self) -> dict[str, Any]: ...


class _Block:
    __slots__ = ("joined", "texts")

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}
        self.joined: bytes | None = None


class TableText:
    """The text of one table. It belongs to one thread at a time."""

    def __init__(self, key: str) -> None:
        """`key` is where the document has the table."""
        self._key = key
        self._blocks: list[_Block] = []
        self._block_of: dict[str, _Block] = {}

    def put(self, name: str, text: bytes | None) -> bytes | None:
        """Set the text of an entry, None for none; returns what it was. A new one comes last."""
        block = self._block_of.get(name)
        if block is None:
            if text is not None:
                self._append(name, text)
            return None
        before = block.texts[name]
        block.joined = None
        if text is not None:
            block.texts[name] = text
            return before
        del block.texts[name], self._block_of[name]
        if not block.texts:
            self._blocks.remove(block)
        return before

    def document(self, version: DataVersion) -> list[bytes]:
        """The whole text, in pieces: what has not changed since the last time is not copied."""
        head = f'{{\n\t"dataVersion":{pretty(version.to_json(), 1)},\n\t"{self._key}":'
        if not self._blocks:
            return [head.encode() + b"{}\n}"]
        pieces = [head.encode() + b"{\n"]
        for block in self._blocks:
            if block.joined is None:
                block.joined = _SEPARATOR.join(block.texts.values())
            pieces += (block.joined, _SEPARATOR)
        pieces[-1] = b"\n\t}\n}"
        return pieces

    def _append(self, name: str, text: bytes) -> None:
        if not self._blocks or len(self._blocks[-1].texts) >= _BLOCK:
            self._blocks.append(_Block())
        block = self._block_of[name] = self._blocks[-1]
        block.texts[name] = text
        block.joined = None


def entry_text(entry: NamedConfig) -> bytes:
    """An entry's lines, without what separates it from the next."""
    plain = _ENCODER.encode(entry.to_json())
    text = f"\t\t{_ENCODER.encode(entry.name)}:{{{_INDENT}{plain[1:-1]}\n\t\t}}"
    return text.encode("utf-8", "surrogatepass")
