"""The rate at which a connection carries bytes, as RocketMQ shows it for people."""

# RocketMQ counts whole seconds.
_SPAN_S = 1.0


class Rate:
    """Bytes a second over the last second or so; 0 before the first has passed."""

    __slots__ = ("_at", "_count", "bytes_a_second")

    def __init__(self) -> None:
        self.bytes_a_second = 0
        self._at: float | None = None
        self._count = 0

    def look(self, now: float, count: int) -> None:
        """`count` bytes were carried by now; called once a second or oftener."""
        if self._at is None:
            self._at, self._count = now, count
        elif (span_s := now - self._at) >= _SPAN_S:
            self.bytes_a_second = round((count - self._count) / span_s)
            self._at, self._count = now, count
