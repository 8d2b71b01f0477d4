from aerobee.native.sends import Sends

class Requests:
    def __init__(self, sends: Sends) -> None: ...
    def take(
        self, read: memoryview, born_host: bytes, /
    ) -> tuple[int, list[bytes], tuple[tuple[int, int], ...]]: ...
