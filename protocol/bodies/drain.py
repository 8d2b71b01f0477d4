"""The answer to DRAIN (31035): how far a broker is with letting its producers go (protocol/WIRE.md
9)."""

from __future__ import annotations

from typing import Final

import msgspec

SERVING: Final = "serving"
ASKING: Final = "asking"
DRAINING: Final = "draining"
DRAINED: Final = "drained"

BEGIN: Final = "begin"
UNDO: Final = "undo"
#: Topics that an answer names at most.
MOST_NAMED: Final = 100


class DrainStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a broker is about its producers.

    `state` is serving (topics are registered with their rights), asking (name servers are asked who
    takes over), draining (topics are registered without the right to write, and producers are still
    served), or drained (they have left, or their time is over). `reason` is for people: why a drain
    was refused, or what it waits for; "" without one.
    """

    state: str
    reason: str = ""
    #: Whether no producer sends any more, as far as the broker knows; null while it serves.
    senders_left: bool | None = None
    since_ms: int | None = None
    #: How many topics are registered without the right to write.
    withheld: int = 0
    #: Topics that nobody else takes, some of them. They keep the right unless all topics were
    #: to be drained.
    untaken: list[str] = []
    untaken_count: int = 0
    #: Groups of producers whose heartbeats the broker gets.
    producer_groups: int = 0
    #: Time since the last send in ms; null when none was seen since the drain began.
    quiet_ms: int | None = None
    timeout_ms: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.state in (SERVING, DRAINED)

    def encode(self) -> bytes:
        """The body of the answer."""
        return msgspec.json.encode(self)

    @classmethod
    def parse(cls, body: bytes) -> DrainStatus:
        """Raises ValueError for a body that is no such answer."""
        try:
            return msgspec.json.decode(body, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"the answer about the drain cannot be read: {error}") from error
