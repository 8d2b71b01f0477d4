"""SQL92 expressions of consumers: compiled in steps, within the limits, and remembered.

An expression comes again and again: in each heartbeat of each member of a group, and in each pull
that brings its own. So what was compiled is kept, the last ones as far as there is room, and what
could not be is kept as well. One is compiled at a time: who asks for the same meanwhile gets that.

The parser is loaded by a worker when the first expression comes. It takes 80 ms and some megabytes,
which a broker without such consumers does not spend.

Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import CHAR_BYTES, FILTER_BYTES, PropertyFilter
from aerobee.protocol.filters.subscription import SQL_TYPE
from aerobee.remoting.turns import Gate

#: Steps that end with what was compiled. They raise BadRequest, which says why it cannot be.
Compiling: TypeAlias = Generator["asyncio.Future[Any] | None", None, PropertyFilter]


class ExpressionLimits(NamedTuple):
    """How long, deep and large an expression may be; what all that are remembered may take."""

    chars: int
    depth: int
    nodes: int
    bytes: int


class Refused(NamedTuple):
    """A faulty expression, why it is faulty, and its bytes. `levels` is given if they are the
    reason: it has more than these, whatever the limit is by now."""

    remark: str
    size: int
    levels: int = 0


class Expressions:
    """The compiled expressions of one broker."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Callable[[], ExpressionLimits]
    ) -> None:
        """`limits` are asked for at each use: they may change."""
        self._loop = loop
        self._limits = limits
        self._loading: asyncio.Future[None] | None = None
        self._one_at_a_time = Gate(1)
        # The newest question is last.
        self._known: dict[str, PropertyFilter | Refused] = {}
        #: Bytes that they take.
        self.bytes = 0

    def compiled(self, kind: str, expression: str) -> Compiling:
        """The filter that an expression of that type means."""
        found = self._find(expression) if kind == SQL_TYPE else None
        if found is None:
            self._check(kind, expression)
            yield from self._one_at_a_time.enter()
            try:
                found = self._find(expression)
                if found is None:
                    found = yield from self._compile(expression)
                    self._keep(expression, found)
            finally:
                self._one_at_a_time.leave()
        if remark := self._why_not(found):
            raise BadRequest(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        assert isinstance(found, PropertyFilter)
        return found

    def why_refused(self, kind: str, expression: str) -> str:
        """Why an expression that was asked for is faulty; "" if that is not known."""
        try:
            self._check(kind, expression)
        except BadRequest as error:
            return error.remark
        found = self._known.get(expression)
        return self._why_not(found) if found is not None else ""

    def _check(self, kind: str, expression: str) -> None:
        if kind != SQL_TYPE:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"there is no expression type {kind[:64]!r}; it is TAG or {SQL_TYPE}",
            )
        if not expression:
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the {SQL_TYPE} expression is empty; subscribe by TAG with * for all messages",
            )
        if len(expression) > (most := self._limits().chars):
            raise BadRequest(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the {SQL_TYPE} expression has {len(expression)} characters, the limit is {most} "
                "(limits.max_sql_chars)",
            )

    def _find(self, expression: str) -> PropertyFilter | Refused | None:
        found = self._known.pop(expression, None)
        if found is not None:
            self._known[expression] = found
        return found

    def _compile(
        self, expression: str
    ) -> Generator[asyncio.Future[Any] | None, None, PropertyFilter | Refused]:
        if self._loading is None:
            self._loading = self._loop.run_in_executor(None, _load)
        yield self._loading
        self._loading.result()
        from aerobee.protocol.filters.sql_filter import RefusedForDepth, compile_in_steps

        # A heartbeat may bring very many, each too short for a second step.
        yield None
        try:
            sql = yield from compile_in_steps(expression)
        except BadRequest as error:
            levels = error.levels if isinstance(error, RefusedForDepth) else 0
            return Refused(error.remark, FILTER_BYTES + CHAR_BYTES * len(expression), levels)
        return PropertyFilter(sql)

    def _why_not(self, found: PropertyFilter | Refused) -> str:
        """Why one is refused, "" if it is not; limits may have changed since it was compiled."""
        limits = self._limits()
        if isinstance(found, Refused):
            if found.levels:
                return _too_deep(f"more than {found.levels}", limits.depth)
            return found.remark
        sql = found.sql
        if sql.depth > limits.depth:
            return _too_deep(str(sql.depth), limits.depth)
        if sql.nodes > limits.nodes:
            return (
                f"the {SQL_TYPE} expression has {sql.nodes} operands and operators, the limit is "
                f"{limits.nodes} (limits.max_sql_nodes)"
            )
        return ""

    def _keep(self, expression: str, found: PropertyFilter | Refused) -> None:
        self._known[expression] = found
        self.bytes += found.size
        most = self._limits().bytes
        while self.bytes > most:
            self.bytes -= self._known.pop(next(iter(self._known))).size


def _too_deep(levels: str, most: int) -> str:
    return (
        f"the {SQL_TYPE} expression has {levels} levels of operators and parentheses, the limit is "
        f"{most} (limits.max_sql_depth)"
    )


def _load() -> None:
    from aerobee.protocol.filters.sql_filter import load_parser

    load_parser()
