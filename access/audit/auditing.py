"""Stands around the handlers of changing requests, and makes an event of each.

A table says which request codes are audited, and for each how its object is named and what state
the object is in (`Audited`). A change is noted, then made, then its event is written with what was
before and after, then it is answered. A request that is refused before its handler runs is an event
as well, which its server reports (`refused`).

Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from copy import copy
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from aerobee.access.audit.recorder import Recorder
from aerobee.access.control import AccessControl
from aerobee.protocol.bodies.audit import AUDIT_WORDS, DONE, FAILED, AuditEvent
from aerobee.protocol.codes import ResponseCode, version_name
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command

#: The steps to an answer, as `remoting.turns.Steps`.
Steps: TypeAlias = Generator["asyncio.Future[Any] | None", None, bytes | None]
Answer: TypeAlias = bytes | Steps | None
Text: TypeAlias = Callable[[Command], str]
_LOCAL: Final = "this machine"


class Peer(Protocol):
    """The part of a connection that events name."""

    @property
    def peer(self) -> tuple[str, int]: ...


class Audited(NamedTuple):
    """How a changing request is told: `object` names what it changes, and `state` says briefly how
    that is, before and after. Neither may tell a secret. `answered_later`: the handler returns
    None, and `Auditing.ended` says how it went. `done_by_others`: clients change the object after
    the answer, so that how it is then says nothing. Its word is in AUDIT_WORDS."""

    object: Text
    state: Text = lambda _command: ""
    answered_later: bool = False
    done_by_others: bool = False


class Auditing:
    """The audit of one server."""

    def __init__(
        self,
        recorder: Recorder,
        table: Mapping[int, Audited],
        access: AccessControl | None,
        refusal_of: Callable[[Exception], str | None],
    ) -> None:
        """`refusal_of` gives the remark of an error by which a request is refused, None for a bug
        of ours."""
        self.recorder = recorder
        self._table = table
        self._access = access
        self._refusal_of = refusal_of
        # The error whose event is written already, until its server has reported it.
        self._told: Exception | None = None
        # Changes that a worker goes on with, by their commands' identity.
        self._later: dict[int, tuple[Command, AuditEvent, Text]] = {}

    def serve(
        self, handle: Callable[[Any, Command], Answer], connection: Peer, command: Command
    ) -> Steps:
        """Serve an audited request by its handler. Raises what that raises, and BadRequest where
        the change cannot be noted."""
        row = self._table[command.code]
        # A handler may let go of what the request says; the state afterwards is asked by it.
        asked = copy(command)
        event = replace(self._event(connection, command), before=_text(row.state, asked))
        begun = self.recorder.begin(event)
        yield begun
        begun.result()
        try:
            answer = handle(connection, command)
            if isinstance(answer, Generator):
                answer = yield from answer
        except Exception as error:
            yield self._ended_by(event, error, _text(row.state, asked))
            self._told = error
            raise
        if row.answered_later and answer is None:
            self._later[id(command)] = asked, event, row.state
            return None
        after = "" if row.done_by_others else _text(row.state, asked)
        yield self.recorder.end(event, after=after)
        return answer

    def _ended_by(
        self, event: AuditEvent, error: Exception, after: str
    ) -> asyncio.Future[None] | None:
        """The end of a change that raised `error`. If its object is as it was before, it is a
        refusal like others, for which nobody waits."""
        remark = self._refusal_of(error)
        if remark is not None and after == event.before:
            self.recorder.end_refused(event, remark)
            return None
        return self.recorder.end(event, FAILED, why=remark or type(error).__name__, after=after)

    def ended(self, command: Command, code: int, remark: str | None) -> asyncio.Future[None] | None:
        """A request that a worker went on with is about to be answered, when the future is done;
        None: at once, nobody audits it."""
        found = self._later.pop(id(command), None)
        if found is None:
            return None
        asked, event, state = found
        outcome = DONE if code == ResponseCode.SUCCESS else FAILED
        return self.recorder.end(event, outcome, why=remark or "", after=_text(state, asked))

    def refused(self, connection: Peer, command: Command, error: Exception) -> None:
        """A server is about to refuse a request; its event follows, unless it is written."""
        told, self._told = self._told, None
        if error is told or command.code not in self._table:
            return
        why = self._refusal_of(error) or type(error).__name__
        self.recorder.refused(self._event(connection, command), why)

    async def of_this_machine(
        self,
        request: str,
        name: str,
        change: Callable[[], Awaitable[None]],
        after: Callable[[], str],
    ) -> None:
        """Make a change that no request asks for, such as a signal's; `after` says what it has
        changed. Raises BadRequest where it cannot be noted: then it is not made."""
        recorder = self.recorder
        event = recorder.new_event(request, object=name, address=_LOCAL)
        await recorder.begin(event)
        try:
            await change()
        except Exception as error:
            await recorder.end(event, FAILED, why=str(error))
            raise
        await recorder.end(event, after=after())

    def note(self, request: str, name: str, before: str, after: str) -> None:
        """A change of this machine's that nothing may stop has been made."""
        event = self.recorder.new_event(request, object=name, address=_LOCAL, before=before)
        self.recorder.end(event, after=after)

    def _event(self, connection: Peer, command: Command) -> AuditEvent:
        row = self._table[command.code]
        return self.recorder.new_event(
            AUDIT_WORDS[command.code],
            object=_text(row.object, command),
            account="" if self._access is None else self._access.account_of(command),
            address=connection.peer[0],
            client=f"{command.language} {version_name(command.version)}",
        )


def _text(text: Text, command: Command) -> str:
    """The text that a row gives; "" where the request does not even name its object."""
    try:
        return text(command)
    except (BadRequest, ValueError, TypeError):
        return ""
