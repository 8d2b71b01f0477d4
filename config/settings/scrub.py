"""Settings of the scrub: reading the whole store again and again, to find damage early."""

from dataclasses import dataclass
from typing import ClassVar

from aerobee.config.settings.setting import setting


@dataclass(frozen=True, kw_only=True)
class ScrubSettings:
    """How fast and how often what is stored is read and checked in the background."""

    section: ClassVar[str] = "scrub"

    scrub_bytes_per_second: int = setting(
        16 << 20,
        key="bytes_per_second",
        unit="bytes",
        low=0,
        high=1 << 40,
        why="""How much of the log is read a second, at most. 16 MiB/s take 5 to 20 percent of a
        processor, more the smaller the messages. 0: no scrub, only reads find damage.""",
    )
    scrub_interval_hours: int = setting(
        168,
        key="interval_hours",
        unit="h",
        low=0,
        high=876_000,
        why="""Hours from the end of one pass over the whole log to the next. After a start what it
        did not read is checked at once. 0: only that.""",
    )
