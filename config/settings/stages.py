"""Settings of staged batches: what jobs write effectively once into topics (decision 10)."""

from dataclasses import dataclass
from typing import ClassVar

from aerobee.config.settings.setting import I64_MAX, setting

_GIB = 1 << 30
_DAY_MS = 86_400_000


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """How long and how much jobs may stage."""

    section: ClassVar[str] = "stage"

    stage_expiry_ms: int = setting(
        _DAY_MS,
        key="expiry_ms",
        unit="ms",
        low=1_000,
        high=365 * _DAY_MS,
        why="""A stage that nothing was added to and no commit has named for so long is given up.
        Less than retention.hours: stages lie in the commit log.""",
    )
    stage_max_bytes: int = setting(
        64 * _GIB,
        key="max_bytes",
        unit="bytes",
        low=1 << 20,
        high=I64_MAX,
        why="""Bytes of stages that are neither published nor given up; beyond it jobs are told to
        try again. They are on the disk, in memory there are some hundred bytes a chunk.""",
    )
