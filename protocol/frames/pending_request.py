"""A request that waits for its answer: the parts that are kept, and their bytes.

A pull that finds nothing, a send that waits for its sync, a question to another client: each may
wait for seconds, thousands at a time, and its peer decides how long its texts are. An answer needs
four numbers of its request (`keep_for_answer`); everything else that waits is counted by its size
(`request_bytes`, `text_bytes`). Code that lets a request wait uses these, and nothing else.

The sizes are estimates of the interpreter's own, above what is really taken, and the same at each
look: the bytes counted when a request came are taken off when it goes.
"""

from __future__ import annotations

from aerobee.protocol.frames.command import Command

#: A request that keeps only what its answer needs.
ANSWERABLE_BYTES = 256

# The object of a text, besides its characters.
_TEXT_BYTES = 56
_WIDEST = 4
# The place of a field in the dictionary.
_FIELD_BYTES = 72


def keep_for_answer(request: Command) -> None:
    """Let go of all that an answer does not need, whoever else has this request in hand."""
    request.ext = {}
    request.body = b""
    request.remark = request.wire_name = None


def text_bytes(text: str) -> int:
    """Bytes that a text takes."""
    return _TEXT_BYTES + len(text) * (1 if text.isascii() else _WIDEST)


def request_bytes(request: Command) -> int:
    """Bytes that a request takes as it came."""
    fields = sum(
        _FIELD_BYTES + text_bytes(key) + text_bytes(value) for key, value in request.ext.items()
    )
    spoken = text_bytes(request.remark or "") + text_bytes(request.wire_name or "")
    return ANSWERABLE_BYTES + len(request.body) + fields + spoken
