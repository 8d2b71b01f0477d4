"""Knows where the stores of shards are, and whether the directory fits the number of shards.

    DIR/shard-0  DIR/shard-1  ...   a store each
    DIR/namesrv                     the key-value table of their name server

A broker without shards has its store in DIR itself. Going from one to the other without moving
files would begin empty stores beside full ones, and fewer shards than before would leave some of
them aside: both would hide messages in silence, so a start refuses and names the files to move.
"""

import os
import re
from collections.abc import Iterator
from typing import Final

from aerobee.config.errors import ConfigError, raise_all
from aerobee.config.model import Settings

_NAME: Final = re.compile(r"shard-(0|[1-9][0-9]{0,5})", re.ASCII)
_SEGMENT: Final = re.compile(r"[0-9]{20}", re.ASCII)
# Each of these names makes a directory a store. `lock` alone does not: a start that failed leaves
# it.
_SIGNS: Final = ("commitlog", "consumequeue", "index", "checkpoint", "config", "abort")


def shard_directory(directory: str, number: int) -> str:
    """The part of `directory` that belongs to a shard."""
    return os.path.join(directory, f"shard-{number}")


def check_layout(settings: Settings, count: int) -> None:
    """Raise ConfigError, which names the files to move, if the store directory of `settings` holds
    files that `count` shards (1: a broker without shards) would not find."""
    raise_all(list(_misfits(settings, count)))


def _misfits(settings: Settings, count: int) -> Iterator[ConfigError]:
    path = settings.store_path
    aside = [number for number in _shards_with_files(path) if number >= count or count == 1]
    if aside:
        yield ConfigError("store.path", path, _aside_text(aside, count))
    if count > 1:
        yield from _plain_stores(settings)


def _aside_text(aside: list[int], count: int) -> str:
    names = ", ".join(f"shard-{number}" for number in aside)
    wanted = f"--shards {count} leaves" if count > 1 else "a start without --shards leaves"
    return (
        f"has stores of shards that {wanted} aside, with their messages: {names}. "
        f"Start with --shards {max(2, aside[-1] + 1)}; or, when they are read to their end or not "
        "wanted, move these directories away (docs/operations.md, Shards)"
    )


def _plain_stores(settings: Settings) -> Iterator[ConfigError]:
    """Finds files of a broker without shards where shards have directories of their own."""
    path = settings.store_path
    first = shard_directory(path, 0)
    if any(os.path.lexists(os.path.join(path, name)) for name in _SIGNS):
        yield ConfigError(
            "store.path",
            path,
            "holds the store of a broker without shards: stop that broker and move all that is in "
            f"there, except namesrv, into {first}, whose broker keeps name and port; or choose "
            "another directory (docs/operations.md, Shards)",
        )
    for log in _given_log_directories(settings):
        if any(_SEGMENT.fullmatch(name) for name in _names(log)):
            reason = f"has segments of a broker without shards: move them into {log}/shard-0"
            yield ConfigError("store.commit_log_path", log, reason)
    kept = os.path.join(first, "namesrv")
    if os.path.exists(kept) and not os.path.exists(settings.kv_file):
        reason = f"the name server of shards does not read {kept}: move it to {path}/namesrv"
        yield ConfigError("store.path", path, reason)


def _given_log_directories(settings: Settings) -> tuple[str, ...]:
    given = settings.commit_log_directories if settings.commit_log_path else ()
    return given + settings.read_only_commit_log_directories


def _shards_with_files(path: str) -> list[int]:
    """The shards whose directory is there and not empty."""
    found = [int(match[1]) for name in _names(path) if (match := _NAME.fullmatch(name))]
    return sorted(number for number in found if _names(shard_directory(path, number)))


def _names(path: str) -> list[str]:
    """The names in a directory; none where it is missing. A directory that cannot be read is an
    error: it must not pass for an empty one."""
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
