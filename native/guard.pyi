from collections.abc import Callable

class Guard:
    def __init__(
        self,
        is_white: Callable[[bytes], bool],
        find_signer: Callable[[bytes], tuple[bytes, bytes] | None],
        may: Callable[[bytes, int, str, str], bool],
    ) -> None: ...
    def forget(self, any_white: bool = True) -> None: ...
