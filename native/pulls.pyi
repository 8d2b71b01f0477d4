from collections.abc import Mapping
from typing import Any, Protocol

from aerobee.store.message_store import MessageStore
from aerobee.store.queues.consume_queue import ConsumeQueue

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

class PullOwner(Protocol):
    def pull_route(self, ext: Mapping[str, str], /) -> PullRoute | None: ...

class PullCounts(Protocol):
    def plain_served(
        self,
        group: str,
        topic: str,
        queue_id: int,
        next_offset: int,
        messages: int,
        size: int,
        seconds: float,
        /,
    ) -> None: ...

class Offsets(Protocol):
    def try_commit(self, group: str, topic: str, queue_id: int, offset: int, /) -> str: ...

class Pulls:
    def __init__(
        self,
        store: MessageStore,
        owner: PullOwner,
        pull: PullCounts,
        offsets: Offsets,
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
