"""The answer to MESSAGE_STATE (31033): how far groups are with a message (protocol/WIRE.md 9)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from aerobee.protocol.bodies.common import parse_body
from aerobee.protocol.frames.fastjson import dumps_in_steps


class WaitingTry(msgspec.Struct, frozen=True):
    """A failed message that waits for its next try: `tries` is how often it failed, `due_ms` the
    time (since 1970) at which it goes to the group's retry topic."""

    tries: int
    due_ms: int

    def json_members(self) -> Mapping[str, Any]:
        """Its form in the answer."""
        return {"tries": self.tries, "due_ms": self.due_ms}


class GroupPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A group that consumes the message's topic, and what the broker knows of it and the message.

    `committed` is its offset in the message's queue, -1 without one; `begin` is the first offset
    that it has not consumed, `given_out` the offset after the last message that it was given.
    `retry_limit` is -1 for a group without settings. `takes` says whether its filter takes the
    message, None while nobody states one.
    """

    group: str
    committed: int
    begin: int
    given_out: int
    online: bool
    keeps_own_offsets: bool
    retry_limit: int
    # Java's form of JSON leaves out what is null.
    subscription: str | None = None
    takes: bool | None = None
    waiting: tuple[WaitingTry, ...] = ()

    def json_members(self) -> Mapping[str, Any]:
        """Its form in the answer."""
        members = {name: getattr(self, name) for name in self.__struct_fields__}
        return {**members, "waiting": list(self.waiting)}


class MessageState(msgspec.Struct, frozen=True):
    """The message at a log offset, and the groups that consume its topic. With `is_cut` the broker
    has not looked at all failed messages that wait."""

    topic: str
    queue_id: int
    queue_offset: int
    groups: tuple[GroupPlace, ...]
    is_cut: bool = False

    def encode(self) -> Generator[None, None, bytes]:
        """The body of the answer, made in steps."""
        members = {name: getattr(self, name) for name in self.__struct_fields__}
        return dumps_in_steps({**members, "groups": list(self.groups)})

    @classmethod
    def parse(cls, body: bytes) -> MessageState:
        """Raises ValueError for a body that is no such answer."""
        try:
            return msgspec.convert(parse_body(body, "answer about a message"), cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"the answer about a message cannot be read: {error}") from error
