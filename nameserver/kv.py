"""The name server's key-value configuration, and its file.

Namespaces of keys, as admin tools use them (order topics above all, protocol/WIRE.md 5.4). The file
is RocketMQ's `{"configTable":{namespace:{key:value}}}`, replaced as a whole, with the content
before it in `X.bak`. A damaged file is read from its backup; when both are damaged the start stops
instead of forgetting what was set.

The table is touched on the loop only; `KvFile.save` may run on another thread.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from aerobee.file_replacement import replace_file
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.fastjson import JsonError, loads

log = logging.getLogger("aerobee.nameserver")

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"

MAX_ENTRIES = 20_000
MAX_NAME_CHARS = 1_024
MAX_VALUE_CHARS = 65_536


class KvFileDamaged(Exception):
    """File and backup are both unreadable; the text names them and what to do."""


class KvTable:
    """namespace -> key -> value, bounded. `changes` counts what must be saved."""

    def __init__(self, table: dict[str, dict[str, str]] | None = None) -> None:
        self._table = table or {}
        self._entries = sum(len(keys) for keys in self._table.values())
        self.changes = 0

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
        keys = self._table.get(namespace, {})
        if key not in keys:
            if self._entries >= MAX_ENTRIES:
                raise BadRequest.system_error(f"there are {MAX_ENTRIES} keys, the limit")
            self._entries += 1
        self._table.setdefault(namespace, keys)[key] = value
        self.changes += 1

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key; one that is not there is no error."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self._entries -= 1
            self.changes += 1

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys of a namespace, None when it was never used."""
        return self._table.get(namespace)

    def to_json(self) -> str:
        """The content of the file."""
        return json.dumps({"configTable": self._table}, ensure_ascii=False, sort_keys=True)


class KvFile:
    """Where the table is kept."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._backup = self.path.with_name(self.path.name + ".bak")

    def load(self) -> KvTable:
        """The table of the file, else of its backup, else an empty one. Raises
        `KvFileDamaged`, OSError."""
        damaged = ""
        for path in (self.path, self._backup):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            except IsADirectoryError as error:
                raise KvFileDamaged(
                    f"{path} is a directory, a file is needed; move it away"
                ) from error
            try:
                table = KvTable(_parse(content))
            except (JsonError, ValueError) as error:
                damaged = f"{path} cannot be read ({error})"
                log.warning("KV file damaged path=%s why=%s", path, error)
                continue
            if path is not self.path and not damaged:
                log.warning("KV file missing, using its backup path=%s", self.path)
            return table
        if damaged:
            raise KvFileDamaged(
                f"{damaged}, nor can its backup; restore one of them, or move both away to start "
                "without them"
            )
        return KvTable()

    def save(self, text: str) -> None:
        """Replace the content; returns once it is on disk. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, text.encode(), backup=self._backup)


def _parse(content: bytes) -> dict[str, dict[str, str]]:
    if not content:
        raise ValueError("it is empty")
    document: Any = loads(content)
    # Without the member it is damaged, too: a flipped bit in its name must not empty the table.
    if not isinstance(document, dict) or not isinstance(document.get("configTable"), dict):
        raise ValueError("it holds no configTable")
    table: dict[str, dict[str, str]] = {}
    for namespace, keys in document["configTable"].items():
        if not isinstance(keys, dict):
            raise ValueError(f"namespace {namespace!r} is no object")
        table[namespace] = {key: str(value) for key, value in keys.items()}
    return table
