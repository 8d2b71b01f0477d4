from collections.abc import Callable
from typing import Any

class Guard:
    def __init__(
        self,
        is_white: Callable[[bytes], bool],
        find_signer: Callable[[bytes], tuple[Any, Any] | None],
        may: Callable[[bytes, int, str, str], bool],
    ) -> None: ...
    def forget(self) -> None: ...
