"""The table of loads: what `aerobee bench` does where the command line says nothing else.

`make bench` and its like (`tests/bench/loads.py`) take their loads from here too.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class Mode(StrEnum):
    """The kind of load that is measured."""

    SEND = "send"
    BATCH = "batch"
    PULL = "pull"
    END_TO_END = "e2e"


class LoadShape(NamedTuple):
    """Traffic. `rate` is messages a second of all connections together; None is a closed loop."""

    mode: Mode
    connections: int
    size: int = 128  # bytes of a body
    batch: int = 0  # messages a request; 0: single sends
    in_flight: int = 1  # requests under way on each connection
    fetch: int = 32  # most messages a pull
    rate: float | None = None


SEND: Final = LoadShape(Mode.SEND, connections=16)
BATCH: Final = LoadShape(Mode.BATCH, connections=16, batch=32)
PULL: Final = LoadShape(Mode.PULL, connections=4)
END_TO_END: Final = LoadShape(Mode.END_TO_END, connections=16)
