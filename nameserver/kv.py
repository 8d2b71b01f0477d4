"""The name server's key-value configuration, and its file.

It has namespaces of keys, which admin tools use (order topics above all, protocol/WIRE.md 5.4). The
file is RocketMQ's `{"configTable":{namespace:{key:value}}}`, replaced as a whole, with the content
before it in `X.bak`. A damaged file is read from its backup; when both are damaged the start begins
with an empty table, and logs that. Damaged files are kept aside, as `X.damaged`.

The table is touched on the loop only. It notes the changes and hands them out (`take_changes`); the
worker that saves has the text in parts (`KvText`) and renders the changed parts anew, so that a
change costs the loop the same however large the table is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

from aerobee.file_replacement import free_name, replace_file, sync_directory
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.fastjson import JsonError, loads

log = logging.getLogger("aerobee.nameserver")

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"

MAX_ENTRIES = 20_000
MAX_NAME_CHARS = 1_024
MAX_VALUE_CHARS = 65_536
# Order topics take some 100 bytes each. The broker's answer to a registration and a client's to the
# question for a namespace hold all of a namespace, in a frame of 16 MiB at most.
MAX_BYTES = 8 * 1024 * 1024

#: The new value by namespace and key, None for a key that is gone.
Changes = dict[str, dict[str, str | None]]


class KvTable:
    """namespace -> key -> value, bounded. `changes` counts what must be saved."""

    def __init__(
        self, table: dict[str, dict[str, str]] | None = None, max_bytes: int = MAX_BYTES
    ) -> None:
        """`max_bytes` bounds names and values together; a larger table that was read can shrink."""
        self._table = table or {}
        self._max_bytes = max_bytes
        self._entries = sum(len(keys) for keys in self._table.values())
        self.bytes = sum(
            _bytes(namespace, key, value)
            for namespace, keys in self._table.items()
            for key, value in keys.items()
        )
        self.changes = 0
        # All, for a peer that has no text yet.
        self._changed: Changes = {name: {**keys} for name, keys in self._table.items()}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key. Raises `BadRequest` (code 1) at a bound."""
        for name, text, limit in (
            ("namespace", namespace, MAX_NAME_CHARS),
            ("key", key, MAX_NAME_CHARS),
            ("value", value, MAX_VALUE_CHARS),
        ):
            if len(text) > limit:
                raise BadRequest.system_error(
                    f"the field {name} has {len(text)} characters, the limit is {limit}"
                )
        known = self.get(namespace, key)
        if known is None and self._entries >= MAX_ENTRIES:
            raise BadRequest.system_error(f"there are {MAX_ENTRIES} keys, the limit")
        before = 0 if known is None else _bytes(namespace, key, known)
        total = self.bytes - before + _bytes(namespace, key, value)
        if total > max(self._max_bytes, self.bytes):
            raise BadRequest.system_error(
                f"with this value the names and values of all keys would take {total} bytes, the "
                f"limit is {self._max_bytes} (limits.max_kv_bytes); delete keys not in use"
            )
        self._entries += known is None
        self.bytes = total
        self._table.setdefault(namespace, {})[key] = value
        self._note(namespace, key, value)

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key; a missing key is no error."""
        known = self._table.get(namespace, {}).pop(key, None)
        if known is not None:
            self._entries -= 1
            self.bytes -= _bytes(namespace, key, known)
            self._note(namespace, key, None)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys of a namespace, None if it was never used."""
        return self._table.get(namespace)

    def take_changes(self) -> Changes:
        """The changes since the last call, for `KvText`; at first everything."""
        taken, self._changed = self._changed, {}
        return taken

    def to_json(self) -> str:
        """The content of the file, made anew."""
        return KvText().text(self._table)

    def _note(self, namespace: str, key: str, value: str | None) -> None:
        self._changed.setdefault(namespace, {})[key] = value
        self.changes += 1


class KvText:
    """The content of the file, in a part for each key. One thread at a time."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, str]] = {}
        #: The number of keys that have been rendered.
        self.rendered = 0

    def text(self, changes: Mapping[str, Mapping[str, str | None]]) -> str:
        """The whole text after these changes, members in order of their names."""
        for namespace, keys in changes.items():
            parts = self._parts.setdefault(namespace, {})
            for key, value in keys.items():
                if value is None:
                    parts.pop(key, None)
                else:
                    parts[key] = f"{encode_basestring(key)}: {encode_basestring(value)}"
                    self.rendered += 1
        namespaces = {
            name: f"{encode_basestring(name)}: {{{_in_order(parts)}}}"
            for name, parts in self._parts.items()
        }
        return f'{{"configTable": {{{_in_order(namespaces)}}}}}'


def _in_order(parts: Mapping[str, str]) -> str:
    names: Iterable[str] = sorted(parts)
    return ", ".join(map(parts.__getitem__, names))


def _bytes(*texts: str) -> int:
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


class KvFile:
    """The file that keeps the table."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._backup = self.path.with_name(self.path.name + ".bak")

    def load(self, max_bytes: int = MAX_BYTES) -> KvTable:
        """The table of the file, else of its backup, else an empty one: a name server that does not
        start serves nobody, and its keys can be set again. Raises OSError."""
        damaged: list[Path] = []
        for path in (self.path, self._backup):
            try:
                table = KvTable(_parse(path.read_bytes()), max_bytes)
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                log.warning("KV file damaged path=%s why=it is a directory", path)
                damaged.append(path)
                continue
            except (JsonError, ValueError) as error:
                log.warning("KV file damaged path=%s why=%s", path, error)
                damaged.append(path)
                continue
            self._put_aside(damaged)
            # A process that was killed may have given the file its name without a sync.
            sync_directory(path.parent)
            if path is not self.path and not damaged:
                log.warning("KV file missing, using its backup path=%s", self.path)
            return table
        if damaged:
            self._put_aside(damaged)
            sync_directory(self.path.parent)
            log.error("KV file lost, serving on without what it held path=%s", self.path)
        return KvTable(max_bytes=max_bytes)

    def _put_aside(self, damaged: Iterable[Path]) -> None:
        """Keep damaged files under another name: they may still help somebody."""
        for path in damaged:
            aside = free_name(path)
            path.rename(aside)
            log.error("damaged KV file kept aside path=%s", aside)

    def save(self, text: str) -> None:
        """Replace the content; returns once it is on disk. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, text.encode(), backup=self._backup)


def _parse(content: bytes) -> dict[str, dict[str, str]]:
    if not content:
        raise ValueError("it is empty")
    document: Any = loads(content, len(content) + 1)
    # A file without the member is damaged, too: a flipped bit in its name must not empty the table.
    if not isinstance(document, dict) or not isinstance(document.get("configTable"), dict):
        raise ValueError("it holds no configTable")
    table: dict[str, dict[str, str]] = {}
    for namespace, keys in document["configTable"].items():
        if not isinstance(keys, dict):
            raise ValueError(f"namespace {namespace!r} is no object")
        table[namespace] = {key: str(value) for key, value in keys.items()}
    return table
