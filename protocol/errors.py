"""Faults of the wire and of the stored record, named by whose fault they are.

`BadFrame` and `BadHeader`: the peer does not speak the protocol; nothing after that byte can be
trusted, so the connection is closed without an answer (protocol/WIRE.md 1.9).
`BadRequest`: the frame is well formed, what it asks for is not; it is answered with `code` and
`remark`, and the connection lives on.
`CorruptRecord`: bytes of a store that are not a record; recovery and readers decide what to do.
Anything else raised in this package is a bug and must surface.
"""

from aerobee.protocol.codes import ResponseCode


class ProtocolError(Exception):
    """Base of everything this package raises on bad input."""


class BadFrame(ProtocolError):
    """The byte stream is not a sequence of frames: close the connection."""


class BadHeader(BadFrame):
    """The frame is well cut but its header cannot be read: close the connection."""


class BadRequest(ProtocolError):
    """A request that is answered with `code` and `remark` instead of being carried out."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark

    @classmethod
    def system_error(cls, remark: str) -> "BadRequest":
        """The usual answer to a missing or unreadable field (protocol/WIRE.md 1.7)."""
        return cls(ResponseCode.SYSTEM_ERROR, remark)

    @classmethod
    def illegal_message(cls, remark: str) -> "BadRequest":
        """The answer to a message that breaks a size or format limit (code 13)."""
        return cls(ResponseCode.MESSAGE_ILLEGAL, remark)

    @classmethod
    def no_permission(cls, remark: str) -> "BadRequest":
        """The answer to what topic, group or broker are set not to allow (code 16)."""
        return cls(ResponseCode.NO_PERMISSION, remark)


class CorruptRecord(ProtocolError):
    """The bytes at a log position are not a valid record."""
