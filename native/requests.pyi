from collections.abc import Callable

from aerobee.native.guard import Guard
from aerobee.native.pulls import Pulls
from aerobee.native.sends import Sends

class Requests:
    def __init__(
        self, sends: Sends | None, pulls: Pulls | None, answers_wait: bool, guard: Guard | None = None, /
    ) -> None: ...
    def take(
        self,
        read: memoryview,
        born_host: bytes,
        may_pull: bool,
        may_wait: int,
        room: int,
        clock: Callable[[], float],
        until: float,
        /,
    ) -> tuple[
        int, bytes, list[tuple[int, int, int, int, bytes]], list[tuple[int, int]]
    ]: ...
