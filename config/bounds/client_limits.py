"""The limits of our own client, for docs/limits.md: what brokers and name servers can make it hold.

The constants live in `client/` and `protocol/`, which know nothing of settings; a test holds these
rows to them. docs/client.md says what a program sees of each.
"""

from typing import Final, NamedTuple


class ClientLimit(NamedTuple):
    """A row: what is bounded, and what becomes of more."""

    name: str
    value: str
    holds: str
    hit: str


CLIENT: Final = (
    ClientLimit(
        "client, routes",
        "200,000 queues of a topic",
        "routes of the topics that the program names; what is known of each queue; the brokers",
        "the route is refused with the reason",
    ),
    ClientLimit(
        "client, messages held",
        "`cached_messages_per_queue`, `cached_bytes_per_queue`; 16 MiB an answer",
        "messages that were pulled and not consumed yet",
        "the queue is not pulled until some are consumed",
    ),
    ClientLimit(
        "client, trace",
        "2,048 records",
        "what was sent and consumed, for the trace topic",
        "the record is dropped, and counted",
    ),
)
