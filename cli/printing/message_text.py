"""Messages on standard output: one line each for people, one JSON object a line for scripts.

A message whose body cannot be made plain (LZ4 or ZSTD without their packages, damaged) says so in
the place of its body; in JSON `body` is null, `unreadable` says why, and `body_base64` is the body
as it is stored, with `compressed` true.
"""

import sys
from typing import Any, Final

from aerobee.cli.printing.output import (
    body_fields,
    body_text,
    bytes_fields,
    print_json,
    print_pairs,
    show,
)
from aerobee.cli.printing.times import time_text
from aerobee.client.message import ReceivedMessage, UnreadableMessage
from aerobee.printable import printable
from aerobee.remoting.peers import address_text

_BODY_SHOWN: Final = 200


class Printer:
    """Prints messages as they come and counts them."""

    def __init__(self, *, json: bool, full: bool) -> None:
        self._json = json
        self._full = full
        self.count = 0

    def print(self, message: ReceivedMessage) -> None:
        """One message; flushed, because somebody may be watching."""
        if self._json:
            print_json(json_fields(message), compact=True)
        elif self._full:
            if self.count:
                show("")
            print_pairs(full_fields(message))
        else:
            show(line(message), flush=True)
        self.count += 1


def line(message: ReceivedMessage) -> str:
    """Store time, broker/queue@offset, tag and keys if any, body."""
    where = f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"
    marks = [f"[{message.tags}]"] if message.tags else []
    if message.keys:
        marks.append(f"({' '.join(message.keys)})")
    parts = [time_text(message.store_timestamp_ms), where, *marks]
    parts.append(_body_text(message, _BODY_SHOWN))
    return printable("  ".join(parts))


def full_fields(message: ReceivedMessage) -> dict[str, object]:
    """Everything about a message, for people."""
    fields: dict[str, object] = {
        "topic": message.topic,
        "queue": f"{message.queue.broker_name}/{message.queue.queue_id}",
        "offset": message.queue_offset,
        "message id": message.msg_id,
        "broker's id": message.offset_msg_id,
        "tag": message.tags,
        "keys": " ".join(message.keys),
        "born": f"{time_text(message.born_timestamp_ms)} at {address_text(message.born_host)}",
        "stored": f"{time_text(message.store_timestamp_ms)} at {address_text(message.store_host)}",
        "redelivered": message.reconsume_times,
        "record bytes": message.size,
    }
    fields |= {f"property {name}": value for name, value in sorted(message.properties.items())}
    fields["body"] = _body_text(message, sys.maxsize)
    return fields


def _body_text(message: ReceivedMessage, limit: int) -> str:
    if isinstance(message, UnreadableMessage):
        return f"CANNOT BE READ, {len(message.stored_body)} bytes: {message.why}"
    return body_text(message.body, limit)


def _body_fields(message: ReceivedMessage) -> dict[str, Any]:
    if isinstance(message, UnreadableMessage):
        return {"unreadable": str(message.why), **bytes_fields(message.stored_body)}
    return body_fields(message.body)


def json_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Everything about a message, for scripts; these names do not change."""
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": message.properties,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": address_text(message.born_host),
        "store_timestamp_ms": message.store_timestamp_ms,
        "store_host": address_text(message.store_host),
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        "record_bytes": message.size,
        "compressed": message.compressed,
        **_body_fields(message),
    }
