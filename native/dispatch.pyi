from collections.abc import Callable, Mapping
from typing import TypeVar

from aerobee.store.index.index_file import IndexFile
from aerobee.store.log.commit_log import Appended
from aerobee.store.queues.consume_queue import ConsumeQueue

Made = TypeVar("Made")

def gather(
    entries: list[Appended], arrival: Callable[[str, int, int, int], Made] | None, /
) -> tuple[list[Made], int, list[tuple[ConsumeQueue, int, bytes]]]: ...
def put_keys(
    entries: list[Appended],
    file: IndexFile,
    prefixes: Mapping[str, int],
    prefix_of: Callable[[str], int],
    hash_of: Callable[[int, str], int],
    /,
) -> None: ...
def put_hashed(hashed: bytes, first: int, most: int, file: IndexFile, /) -> None: ...
