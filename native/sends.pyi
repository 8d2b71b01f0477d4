from collections.abc import Callable, Iterable
from typing import Any

from aerobee.store.log.commit_log import CommitLog
from aerobee.store.queues.consume_queue import ConsumeQueue

class Route:
    def __init__(
        self, name: str, queues: int, sys_flag: int, size_kinds: int, /
    ) -> None: ...
    def take_counts(self) -> tuple[list[tuple[int, int, int]], list[int]]: ...

class Sends:
    def __init__(
        self,
        log: CommitLog,
        find_route: Callable[[bytes], Route | None],
        find_queue: Callable[[str, int], ConsumeQueue | None],
        count: Callable[[Any, list[tuple[int, int, int]], list[int]], None],
        *,
        cluster: bytes,
        store_host: bytes,
        json_parts: list[bytes],
        binary_parts: list[bytes],
        not_plain: Iterable[bytes],
        not_plain_flags: int,
        size_bounds: Iterable[float],
        max_message_bytes: int,
        safe_properties: int,
    ) -> None: ...
    def forget_routes(self) -> None: ...
    def plain_rows(self, body: bytes, most_body: int, most_properties: int, /) -> int: ...
    def put_rows(
        self,
        topic: bytes,
        queue_id: int,
        body: bytes,
        skip: int,
        most: int,
        born_ms: int,
        born_host: bytes,
        /,
    ) -> int: ...
