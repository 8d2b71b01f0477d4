from collections.abc import Callable
from typing import Any

from aerobee.native.guard import Guard
from aerobee.native.pulls import Pulls
from aerobee.native.sends import Sends

class HeldAnswers:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def end(self) -> int: ...
    def codes(self) -> list[tuple[int, int]]: ...
    def each(self) -> list[tuple[Any, int, int, int, int, bytes]]: ...
    def leave(self) -> None: ...
    def belong_to(self, connection: Any, /) -> None: ...

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
    ) -> tuple[int, bytes, HeldAnswers | None, list[tuple[int, int]]]: ...
