from collections.abc import Callable, Mapping
from typing import Any

from aerobee.store.log.commit_log import CommitLog
from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.segments.mapped_file import MappedFile

class PullRoute:
    def __init__(
        self,
        queue: ConsumeQueue,
        any_queue: bool,
        codes: frozenset[int] | None,
        group: str,
        live: Any,
        subscription: Any,
        broker_id: int,
        slow_broker_id: int,
        /,
    ) -> None: ...

class Pulls:
    def __init__(
        self,
        log: CommitLog,
        find_route: Callable[[Mapping[str, str]], PullRoute | None],
        checked_below: Callable[[MappedFile], int],
        served: Callable[[str, str, int, int, int, int, float], None],
        commit: Callable[[str, str, int, int], Any],
        *,
        json_parts: list[bytes],
        binary_parts: list[bytes],
        memory_bytes: int,
        recent: tuple[int, int],
        old: tuple[int, int],
        most_messages: int,
        least_entries: int,
    ) -> None: ...
    def forget_routes(self) -> None: ...
