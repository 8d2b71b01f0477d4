"""Audit events: one line of JSON each, in files, in answers to AUDIT_EVENTS, in `aerobee audit`.

Texts from outside are cut by their bytes and escaped, so a line is ASCII, ends with its one line
break, and has `LINE_BYTES` at most. A line that cannot be read was being written when a process
ended, or is damaged; `parse_event` returns None for it.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

#: The most bytes of a line.
LINE_BYTES: Final = 4096
#: How a change ended. What was refused has changed nothing, unless `why` says that it was stopped
#: half-way; of what is unknown the process ended before the outcome was written.
DONE, REFUSED, FAILED, UNKNOWN = "done", "refused", "failed", "unknown"
OUTCOMES: Final = (DONE, REFUSED, FAILED, UNKNOWN)
# Bytes of each text as it stands in a line; together with names and numbers less than LINE_BYTES.
_BYTES: Final = {"object": 768, "before": 768, "after": 768, "why": 768}
_BYTES_OF_OTHERS: Final = 128
_CUT: Final = "..."


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was asked for. `id` is its own among the events of one file. Empty texts are
    not known, or do not apply; `times` counts equal requests that were refused one after the other,
    of which this is the last."""

    id: str
    timestamp_ms: int
    #: What was asked for, such as `topic_delete`.
    request: str
    #: The topic, group, account or setting that was to be changed.
    object: str = ""
    #: The access key, where accounts are asked for.
    account: str = ""
    address: str = ""
    #: Language and version, as the client gives them.
    client: str = ""
    before: str = ""
    after: str = ""
    #: One of OUTCOMES; "" for a change that has only begun.
    outcome: str = ""
    #: The reason of an outcome that is not DONE.
    why: str = ""
    times: int = 1

    def encode(self) -> bytes:
        """The line, with its line break."""
        fields: dict[str, Any] = {"id": self.id, "timestamp_ms": self.timestamp_ms}
        for name in self.__struct_fields__[2:-1]:
            if text := getattr(self, name):
                fields[name] = _cut(text, _BYTES.get(name, _BYTES_OF_OTHERS))
        if self.times != 1:
            fields["times"] = self.times
        return _json(fields) + b"\n"


def parse_event(line: bytes) -> AuditEvent | None:
    """The event of a line, with or without its line break; None for a line that is not whole."""
    try:
        return msgspec.convert(json.loads(line), AuditEvent)
    except (ValueError, RecursionError):
        return None


def _cut(text: str, most: int) -> str:
    """A text whose JSON takes `most` bytes at most; what is left out leaves dots."""
    # A half of a surrogate pair alone is no text.
    text = text[:most].encode("utf-8", "replace").decode() if not text.isascii() else text
    if len(text) <= most and len(_json(text)) <= most:
        return text
    text = text[: most - len(_CUT) - 2]
    while len(_json(text)) > most - len(_CUT):
        text = text[: len(text) * 3 // 4]
    return text + _CUT


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
