"""The handle by which a message that waits for its time is recalled (protocol/WIRE.md 3.1).

RocketMQ 5's text: `v1 topic broker time id` in base64 of the URL alphabet. The broker gives it with
the answer to the send; a client that knows the parts can make it.
"""

import base64
import re
from typing import NamedTuple

_VERSION = "v1"
_PARTS = 5
_TIME = re.compile(r"[0-9]{1,16}", re.ASCII)
# Printable, without blanks, and the same in a JSON text.
_ID = re.compile(r"[!#-\[\]-~]{1,255}", re.ASCII)


class RecallHandle(NamedTuple):
    """Names a message: `unique_id` is its producer's id of it, `deliver_ms` its time."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_id: str

    def encode(self) -> str:
        """The handle as text."""
        parts = (_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_id)
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_handle(text: str) -> RecallHandle:
    """The handle in a text. Raises ValueError, which names the fault."""
    try:
        padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
        decoded = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise ValueError("it is no base64 of the URL alphabet") from error
    parts = decoded.split(" ")
    if len(parts) < _PARTS or parts[0] != _VERSION:
        raise ValueError("it does not hold 'v1 topic broker time id'")
    _, topic, broker_name, time_text, unique_id = parts[:_PARTS]
    if not _TIME.fullmatch(time_text):
        raise ValueError("its time is no number of milliseconds since 1970")
    if not is_recallable_id(unique_id):
        raise ValueError("its message id is empty, too long, or has other characters than ids have")
    return RecallHandle(topic, broker_name, int(time_text), unique_id)


def is_recallable_id(text: str) -> bool:
    """Whether a handle can name that unique id."""
    return _ID.fullmatch(text) is not None
