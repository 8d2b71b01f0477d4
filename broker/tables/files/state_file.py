"""JSON state on disk: `config/*.json` in RocketMQ's own form, replaced atomically.

Form: what fastjson's pretty printer writes (store/FORMAT.md 11.1): one tab a level, no space after
a colon, whole-number keys bare and all on one line, no final newline.

Writing (docs/reliability.md B7): the new text goes to `X.tmp` and is synced, the old text is kept
as `X.bak`, then `X.tmp` is renamed over `X` and the directory is synced. A first text gets its
`X.bak` after that. A crash at any point leaves a whole `X`, or a whole `X.bak` beside a missing
one, or neither before the first save. The backup before, when it is large, stays as `X.spare` for
the next text to be written over (file_replacement.py); it is never read.

Reading (store/FORMAT.md 11.4): `X`, else `X.bak` when `X` is missing, empty or damaged. Of a file
whose owner serves on without it (`sets_aside`), what is damaged is renamed to `X.damaged`, never
deleted and never overwritten, and the owner begins with what it can make of the pieces: the log and
the readiness page name it until somebody takes it away. A tool that only reads gets an error. What
was read is durable then, its name too: the process that gave it the name may have been killed
before it synced the directory, and what is not changed is not written again.

A reader takes whatever a writer has written: a table is bounded where it grows, not by how many
values its text has (`read_document`).
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from aerobee.file_replacement import (
    Content,
    free_name,
    replace_file,
    set_aside_of,
    sync_directory,
    write_synced,
)
from aerobee.protocol.frames.fastjson import loads
from aerobee.store.disk.files import is_full
from aerobee.store.disk.syncs import sync_all
from aerobee.store.errors import StoreNotWritable

log = logging.getLogger("aerobee.broker.state")

T = TypeVar("T")

_MODE = 0o640
# So much of a value stands in an error.
_SHOWN = 40
#: Makes what it can of the bytes of damaged files, the newer one first.
Rescue: TypeAlias = Callable[[Sequence[bytes]], T]


class StateFileError(Exception):
    """A state file cannot be read, nor can its backup; the text names them and what to do."""


class _NotAFile(ValueError):
    """Something else stands in the place of a file."""


class JsonStateFile:
    """One state file. `save` may be called from any thread, one at a time."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sets_aside: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """With `sets_aside` a load renames what is damaged and goes on without it. `check` raises
        OSError where nothing may be written any more."""
        self.path = Path(path)
        #: The file that `load` had its content from: `path`, `backup`, or None without any.
        self.loaded_from: Path | None = None
        #: Whether `load` found damage, and no backup that could be read.
        self.is_lost = False
        self._sets_aside = sets_aside
        self.check = check
        self._lock = threading.Lock()
        # A damaged file must not take the place of the backup that was read instead of it.
        self._keep_backup = False

    @property
    def backup(self) -> Path:
        return self.path.with_name(self.path.name + ".bak")

    def load(self, parse: Callable[[bytes], T], default: T, rescue: Rescue[T] | None = None) -> T:
        """The parsed content, or `default` before the first save.

        `parse` raises ValueError (or KeyError, TypeError) on what it cannot read. When the file is
        damaged, or only its backup there, and no backup helps, a file that may be set aside gives
        what `rescue` makes of the bytes, or `default`; any other raises `StateFileError`. Raises
        OSError when its directory cannot be synced, or read.
        """
        damage: list[tuple[Path, str]] = []
        contents: list[bytes] = []
        for path in (self.path, self.backup):
            try:
                content = _read(path)
                if content is None:
                    if path is self.path and self.backup.exists():
                        log.warning("state file missing, using its backup %s", path)
                    continue
                contents.append(content)
                if not content:
                    raise ValueError("it is empty")
                found = parse(content)
            except (ValueError, KeyError, TypeError) as error:
                is_file = not isinstance(error, _NotAFile)
                said = f"{path} cannot be read ({error})" if is_file else f"{path} {error}"
                damage.append((path, said))
                continue
            if damage:
                log.warning("state file damaged, using its backup %s", damage[0][1])
            self.loaded_from, self._keep_backup = path, bool(damage)
            self._put_aside(damage)
            sync_directory(path.parent, sync=sync_all)
            return found
        if not damage:
            return default
        why = " and ".join(text for _, text in damage)
        if not self._sets_aside:
            raise StateFileError(
                f"{why}; restore {self.path} or its backup {self.backup}, or move both away to "
                "start without them"
            )
        self.is_lost = True
        self._put_aside(damage)
        sync_directory(self.path.parent, sync=sync_all)
        log.error("state file lost, serving on without what it held why=%s", why)
        return default if rescue is None else rescue(contents)

    def _put_aside(self, damaged: Sequence[tuple[Path, str]]) -> None:
        """Rename damaged files, if this file may: what they hold may still help somebody."""
        for path, _ in damaged if self._sets_aside else ():
            aside = free_name(path)
            path.rename(aside)
            log.error("damaged file kept aside path=%s", aside)

    def set_aside(self) -> list[Path]:
        """The files in which this file and its backup were set aside, at this start or an earlier
        start."""
        return [*set_aside_of(self.path), *set_aside_of(self.backup)]

    def save_or_refuse(self, text: str | Content) -> None:
        """Save a change that a client waits for. Raises StoreNotWritable with the reason, so that
        the client gets the answer that a send would get."""
        try:
            self.save(text)
        except OSError as error:
            if not is_full(error):
                raise StoreNotWritable(
                    f"{self.path} cannot be written ({error}). Nothing was changed; changes are "
                    "taken again when that is repaired."
                ) from error
            raise StoreNotWritable(
                f"the disk is full: {self.path} cannot be written ({error.strerror}). Changes are "
                "taken again when there is room."
            ) from error

    def save(self, text: str | Content) -> None:
        """Replace the content, a text or its UTF-8, which may be in pieces; returns once it is on
        disk. Raises OSError."""
        with self._lock:
            self.check()
            # Not the folders above: a store that is gone is not begun anew.
            self.path.parent.mkdir(exist_ok=True)
            new = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            backup = None if self._keep_backup else self.backup
            replace_file(self.path, new, backup=backup, keep_spare=True, mode=_MODE, sync=sync_all)
            self._keep_backup = False
            if not self.backup.exists():
                self._back_up_first(new)

    def _back_up_first(self, content: Content) -> None:
        """The first content is its own backup: one bad bit must not stop the next start.

        It comes last, and goes again if there is no room for it: half a backup beside a missing
        file would stop the start.
        """
        try:
            write_synced(self.backup, content, mode=_MODE, sync=sync_all)
        except OSError as error:
            self.backup.unlink(missing_ok=True)
            if not is_full(error):
                raise
            log.warning("no room for the backup of %s, the next change makes one", self.path)


def pretty(value: Any, level: int = 0) -> str:
    """A value in the form of fastjson's pretty printer (store/FORMAT.md 11.1)."""
    if isinstance(value, Mapping):
        return _pretty_map(value, level)
    if isinstance(value, list | tuple):
        return "[" + ",".join(pretty(item, level) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _pretty_map(value: Mapping[Any, Any], level: int) -> str:
    if not value:
        return "{}"
    indent = "\t" * level
    if all(isinstance(key, int) for key in value):
        entries = ",".join(f"{key}:{pretty(item, level)}" for key, item in value.items())
        return f"{{{entries}\n{indent}}}"
    lines = [
        f"{indent}\t{json.dumps(key, ensure_ascii=False)}:{pretty(item, level + 1)}"
        for key, item in value.items()
    ]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def members(value: Any) -> Mapping[str, Any]:
    """`value` as a JSON object. Raises ValueError when it is something else."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{json.dumps(value)[:_SHOWN]} stands where an object has to be")
    return value


def read_document(content: bytes) -> Any:
    """The value of a file of ours, however many values it has. Raises ValueError."""
    return loads(content, len(content) + 1)


def _read(path: Path) -> bytes | None:
    """The content; None if there is no such file. Raises _NotAFile, StateFileError, OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError as error:
        raise _NotAFile("is a directory, a file is needed") from error
    except NotADirectoryError as error:
        raise StateFileError(
            f"{path.parent} is a file, a directory is needed; move it away"
        ) from error
