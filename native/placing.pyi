def place(
    records: bytearray,
    sizes: list[int],
    memory: memoryview,
    at: int,
    queue_offset: int,
    log_offset: int,
    store_ms: int,
    time_at: int,
    /,
) -> None: ...
