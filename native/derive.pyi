from collections.abc import Callable

from aerobee.store.log.compiled import Derived
from aerobee.store.queues.consume_queue import ConsumeQueue

class Deriver:
    def __init__(
        self,
        place_of: Callable[[bytes, int], tuple[ConsumeQueue | None, int] | None],
        check_body: bool,
        with_keys: bool,
        derive_from: int,
    ) -> None: ...
    def take(
        self,
        buffer: bytes | memoryview,
        position: int,
        log_offset: int,
        stop: int,
        passed_below: int,
        asked_up_to: int,
        /,
    ) -> Derived | None: ...
