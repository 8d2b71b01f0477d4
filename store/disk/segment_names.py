"""Names of segments, of the log and of queues: the first byte in 20 digits (store/FORMAT.md 1)."""

import re

_NAME = re.compile(r"[0-9]{20}", re.ASCII)


def segment_name(start: int) -> str:
    """File name of the segment that begins at `start`."""
    return f"{start:020d}"


def is_segment_name(name: str) -> bool:
    """Whether a file of that name is a segment, of the log or of a queue."""
    return _NAME.fullmatch(name) is not None
