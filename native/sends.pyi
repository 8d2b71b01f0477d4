from collections.abc import Iterable
from typing import Protocol

from aerobee.store.log.commit_log import CommitLog

class Route:
    def __init__(
        self, name: str, queues: int, sys_flag: int, size_kinds: int, /
    ) -> None: ...
    def take_counts(self) -> tuple[list[tuple[int, int, int]], list[int]]: ...

class SendOwner(Protocol):
    def send_route(self, encoded: bytes, /) -> Route | None: ...
    def count_stored(
        self, topic: str, queues: list[tuple[int, int, int]], sizes: list[int], /
    ) -> None: ...

class Sends:
    def __init__(
        self,
        log: CommitLog,
        owner: SendOwner,
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
