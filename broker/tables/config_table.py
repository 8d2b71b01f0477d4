"""What the tables of topics and of groups have in common: named configurations in one state file.

The table and its data version change together, after the new text is on the disk: what was
answered survives a restart, and a change that cannot be written changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from aerobee.broker.tables.state_file import JsonStateFile, members, pretty
from aerobee.protocol.bodies.topics import DataVersion
from aerobee.protocol.frames.fastjson import loads

log = logging.getLogger("aerobee.broker.state")


class NamedConfig(Protocol):
    """One entry."""

    @property
    def name(self) -> str: ...
    def to_json(self) -> dict[str, Any]: ...


C = TypeVar("C", bound=NamedConfig)


class ConfigTable(Generic[C]):
    """Entries by name, the built-in ones among them. Loop thread only."""

    def __init__(
        self,
        file: JsonStateFile,
        key: str,
        built_in: Mapping[str, C],
        parse: Callable[[str, Mapping[str, Any]], C | None],
        clock_ms: Callable[[], int],
    ) -> None:
        """`key` is where the file has the table; `parse` makes an entry of a name and its members,
        None of one to be left out. Raises StateFileError."""
        self._file = file
        self._key = key
        self._clock_ms = clock_ms
        #: How many texts were read: 0 without a file, 2 when only the backup was whole.
        self._texts_read = 0
        nothing: tuple[DataVersion | None, dict[str, C]] = (None, {})
        version, stored = file.load(lambda content: self._parse(content, parse), nothing)
        self._entries: dict[str, C] = {**built_in, **stored}
        self.data_version: DataVersion = version or DataVersion(clock_ms(), 0)

    def __len__(self) -> int:
        return len(self._entries)

    def all(self) -> list[C]:
        return list(self._entries.values())

    def update(self, entry: C) -> C:
        """Store an entry, new or changed. Raises StoreNotWritable when the disk is full, OSError;
        then nothing has changed."""
        self._change({**self._entries, entry.name: entry}, [entry])
        return entry

    def delete(self, name: str) -> bool:
        """Remove an entry; False when there was none. Raises as `update`."""
        if name not in self._entries:
            return False
        self._change({known: one for known, one in self._entries.items() if known != name}, [])
        return True

    def to_json(self) -> dict[str, Any]:
        """The table as the wire and the file have it."""
        return self._to_json(self._entries, self.data_version)

    def _change(self, entries: dict[str, C], _changed: list[C]) -> None:
        """Take `entries` as the table, once they are on the disk: a send to a topic that only
        memory knows would be answered, and be in no topic after a restart."""
        version = DataVersion(self._clock_ms(), self.data_version.counter + 1)
        self._file.save_or_refuse(pretty(self._to_json(entries, version)))
        self._entries, self.data_version = entries, version

    def _to_json(self, entries: Mapping[str, C], version: DataVersion) -> dict[str, Any]:
        return {
            "dataVersion": version.to_json(),
            self._key: {name: entry.to_json() for name, entry in entries.items()},
        }

    def _parse(
        self, content: bytes, parse: Callable[[str, Mapping[str, Any]], C | None]
    ) -> tuple[DataVersion | None, dict[str, C]]:
        self._texts_read += 1
        document = loads(content)
        entries = {
            name: entry
            for name, value in members(members(document)[self._key]).items()
            if (entry := parse(name, members(value))) is not None
        }
        return _version(document.get("dataVersion"), self._clock_ms()), entries


def _version(value: Mapping[str, Any] | None, now_ms: int) -> DataVersion:
    """The version in a file; a missing one is of now, unchanged. Raises ValueError, TypeError."""
    if not value:
        return DataVersion(now_ms, 0)
    if not isinstance(value, Mapping):
        raise ValueError("the data version is not an object")
    return DataVersion(int(value.get("timestamp", now_ms)), int(value.get("counter", 0)))
