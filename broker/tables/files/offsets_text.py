"""The text of a file of offsets, kept in parts: a save renders what has changed, not the table.

A hundred thousand offsets rendered anew at each save would cost tenths of a second of the
interpreter, which the loop has to share with every other thread. So a table has its text in one
part an entry; the loop notes which entries it changed, a worker renders those and joins all.

The loop changes the table while the worker reads it. Each entry is copied by one call that nothing
interrupts, and is as it was when the changes were taken, or newer; what was changed since is noted
again and saved next time. No entry depends on another, so a mixture says nothing false.

The form is that of fastjson's pretty printer (store/FORMAT.md 11.1).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, Generic, TypeVar

_KEY_SEPARATOR = "@"
# A worker that computes gives the interpreter up only once in some milliseconds. So it gives it up
# by itself after this number of entries, which take less than a millisecond.
_ENTRIES_AT_ONCE = 500

#: A topic and a group.
Pair = tuple[str, str]
#: Some of them, in order.
Changed = dict[Pair, None]
#: The changes that a save has to write, table by table.
Changes = list[Changed]
V = TypeVar("V")


def offset_key(topic: str, group: str) -> str:
    """A pair as the file names it."""
    return f"{topic}{_KEY_SEPARATOR}{group}"


def parse_key(key: str) -> Pair:
    """(topic, group) of a name in the file. Raises ValueError."""
    topic, separator, group = key.partition(_KEY_SEPARATOR)
    if not separator:
        raise ValueError(f"offset key {key!r} is not topic@group")
    return topic, group


def queues_text(queues: Mapping[int, int]) -> str:
    """The offsets of a pair by queue id; at most one copy is made while the loop stands."""
    if not queues:
        return "{}"
    return str(queues).replace(" ", "")[:-1] + "\n\t\t}"


class TableText(Generic[V]):
    """One table of the file. `changed` and `take` are of the loop, `text` is of one worker."""

    def __init__(self, name: str, table: Mapping[Pair, V], render: Callable[[V], str]) -> None:
        """`table` goes on changing; `render` gives the text of one of its values."""
        self._name = name
        self._table = table
        self._render = render
        self._parts: dict[Pair, str] | None = None
        #: The pairs whose entries were made, changed or removed since the last `take`, in order.
        self.changed: Changed = {}
        #: How many entries have been rendered.
        self.rendered = 0

    def take(self) -> Changed:
        """The changes since the last call, to be given to `text`."""
        taken, self.changed = self.changed, {}
        return taken

    def all_changed(self) -> None:
        """Every entry is to be written again. Loop."""
        self.changed |= dict.fromkeys(self._table)

    def text(self, changed: Iterable[Pair]) -> str:
        """The member of the document, with its name."""
        if self._parts is None:
            self._parts = {}
            changed = list(self._table)
        for number, pair in enumerate(changed, 1):
            if number % _ENTRIES_AT_ONCE == 0:
                time.sleep(0)
            self._refresh(self._parts, pair)
        entries = ",\n".join(self._parts.values())
        return f'\t"{self._name}":' + (f"{{\n{entries}\n\t}}" if entries else "{}")

    def _refresh(self, parts: dict[Pair, str], pair: Pair) -> None:
        value = self._table.get(pair)
        if value is None:
            parts.pop(pair, None)
            return
        self.rendered += 1
        parts[pair] = f"\t\t{encode_basestring(offset_key(*pair))}:{self._render(value)}"


class DocumentText:
    """The file of one or two tables."""

    def __init__(self, *tables: TableText[Any]) -> None:
        self._tables: Sequence[TableText[Any]] = tables

    def take(self) -> Changes | None:
        """The changes since the last call, table by table; None without changes. Loop."""
        if not any(table.changed for table in self._tables):
            return None
        return [table.take() for table in self._tables]

    def put_back(self, changes: Changes) -> None:
        """These changes were taken and not saved. Loop."""
        for table, changed in zip(self._tables, changes, strict=True):
            table.changed |= changed

    def put_back_all(self) -> None:
        """Nothing is saved of what was taken so far. Loop."""
        for table in self._tables:
            table.all_changed()

    def text(self, changes: Changes) -> str:
        """The whole file. Worker."""
        members = [
            table.text(changed) for table, changed in zip(self._tables, changes, strict=True)
        ]
        return "{\n" + ",\n".join(members) + "\n}"


# --- rescue: a start that loses all offsets sends each group back, or past messages that it has not
# seen. But an entry is a line or two, and most of them are whole where a file was cut or a page of
# it was lost. So entries are looked for singly, in the newer file first, and a damaged entry is
# passed over. Nothing guards the digits, here as little as in a file that can be read.

# Names of topics and groups have these characters alone (protocol/names.py).
_KEY = rb'"([%|\w-]{1,127}@[%|\w-]{1,255})"\s*+:\s*+'
_QUEUES = re.compile(_KEY + rb'\{((?:\s*+"?[0-9]{1,10}"?\s*+:\s*+[0-9]{1,18}\s*+,?)*+)\s*+\}')
_LIGHT = re.compile(_KEY + rb"([0-9]{1,18})\s*+[,}]")
_ONE = re.compile(rb'"?([0-9]+)"?\s*+:\s*+([0-9]+)')


def rescued_offsets(contents: Sequence[bytes]) -> dict[Pair, dict[int, int]]:
    """Offsets by (topic, group) and queue id in what is left of these files, newer one first."""
    table: dict[Pair, dict[int, int]] = {}
    for content in contents:
        for key, queues in _QUEUES.findall(content):
            found = {int(queue): int(offset) for queue, offset in _ONE.findall(queues)}
            table.setdefault(parse_key(key.decode()), found)
    return table


def rescued_light_offsets(contents: Sequence[bytes]) -> dict[Pair, int]:
    """Rescue the offsets of light groups, by (topic, group)."""
    table: dict[Pair, int] = {}
    for content in contents:
        for key, offset in _LIGHT.findall(content):
            table.setdefault(parse_key(key.decode()), int(offset))
    return table
