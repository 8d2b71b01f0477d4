"""Compiles consumers' expressions over properties in steps, within the limits; remembers them.

An expression comes again and again: in each heartbeat of each member of a group, and in each pull
that brings its own. So what was compiled is kept, the last ones as far as there is room, and what
could not be is kept as well. One is compiled at a time: who asks for the same meanwhile gets that.

The parser of a type is loaded by a worker when the first expression of the type comes. It takes
80 ms and some megabytes, which a broker without such consumers does not spend.

Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

from aerobee.config.model import Settings
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import (
    CHAR_BYTES,
    EXPRESSION_TYPES,
    FILTER_BYTES,
    PropertyFilter,
    RefusedForDepth,
    TypedExpression,
    check_type,
)
from aerobee.remoting.turns import Gate

#: Steps that end with what was compiled. They raise BadRequest, which says why it cannot be.
Compiling: TypeAlias = Generator["asyncio.Future[Any] | None", None, PropertyFilter]


class Refused(NamedTuple):
    """A faulty expression, why it is faulty, and its bytes. `levels` is given if they are the
    reason: it has more than these, whatever the limit is by now."""

    remark: str
    size: int
    levels: int = 0


class Expressions:
    """The compiled expressions of one broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings) -> None:
        self._loop = loop
        # Its limits may change.
        self._settings = settings
        self._loading: dict[str, asyncio.Future[None]] = {}
        self._one_at_a_time = Gate(1)
        # The newest question is last.
        self._known: dict[TypedExpression, PropertyFilter | Refused] = {}
        #: Bytes that they take.
        self.bytes = 0

    def compiled(self, expression: TypedExpression) -> Compiling:
        """The filter that an expression means."""
        found = self._find(expression)
        if found is None:
            self._check(expression)
            yield from self._one_at_a_time.enter()
            try:
                found = self._find(expression)
                if found is None:
                    found = yield from self._compile(expression)
                    self._keep(expression, found)
            finally:
                self._one_at_a_time.leave()
        if remark := self._why_not(expression, found):
            raise BadRequest(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        assert isinstance(found, PropertyFilter)
        return found

    def why_refused(self, expression: TypedExpression) -> str:
        """Why an expression that was asked for is faulty; "" if that is not known."""
        try:
            self._check(expression)
        except BadRequest as error:
            return error.remark
        found = self._known.get(expression)
        return self._why_not(expression, found) if found is not None else ""

    def _check(self, expression: TypedExpression) -> None:
        kind, text = expression
        check_type(kind)
        if not text:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the {kind} expression is empty; subscribe by TAG with * for all messages",
            )
        if len(text) > (most := self._settings.max_sql_chars):
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the {kind} expression has {len(text)} characters, the limit is {most} "
                "(limits.max_sql_chars)",
            )

    def _find(self, expression: TypedExpression) -> PropertyFilter | Refused | None:
        found = self._known.pop(expression, None)
        if found is not None:
            self._known[expression] = found
        return found

    def _compile(
        self, expression: TypedExpression
    ) -> Generator[asyncio.Future[Any] | None, None, PropertyFilter | Refused]:
        kind, text = expression
        row = EXPRESSION_TYPES[kind]
        loading = self._loading.get(kind)
        if loading is None:
            loading = self._loading[kind] = self._loop.run_in_executor(None, row.load)
        yield loading
        loading.result()
        # A heartbeat may bring very many, each too short for a second step.
        yield None
        try:
            compiled = yield from row.compile_in_steps(text)
        except BadRequest as error:
            levels = error.levels if isinstance(error, RefusedForDepth) else 0
            return Refused(error.remark, FILTER_BYTES + CHAR_BYTES * len(text), levels)
        return PropertyFilter(compiled)

    def _why_not(self, expression: TypedExpression, found: PropertyFilter | Refused) -> str:
        """Why one is refused, "" if it is not; limits may have changed since it was compiled."""
        limits, kind = self._settings, expression[0]
        if isinstance(found, Refused):
            if found.levels:
                return _too_deep(kind, f"more than {found.levels}", limits.max_sql_depth)
            return found.remark
        compiled = found.compiled
        if compiled.depth > limits.max_sql_depth:
            return _too_deep(kind, str(compiled.depth), limits.max_sql_depth)
        if compiled.nodes > limits.max_sql_nodes:
            return (
                f"the {kind} expression has {compiled.nodes} operands and operators, the limit is "
                f"{limits.max_sql_nodes} (limits.max_sql_nodes)"
            )
        return ""

    def _keep(self, expression: TypedExpression, found: PropertyFilter | Refused) -> None:
        self._known[expression] = found
        self.bytes += found.size
        most = self._settings.sql_filter_bytes
        while self.bytes > most:
            self.bytes -= self._known.pop(next(iter(self._known))).size


def _too_deep(kind: str, levels: str, most: int) -> str:
    return (
        f"the {kind} expression has {levels} levels of operators and parentheses, the limit is "
        f"{most} (limits.max_sql_depth)"
    )
