"""A SQL92 expression as readers of stored records use it: asked of a message's properties as they
stand in its record.

Of the properties only those are read that the expression asks for; messages have many more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aerobee.protocol.message.properties import chosen_properties, property_marks

if TYPE_CHECKING:
    # It brings the parser with it, which a broker without such consumers does not need.
    from aerobee.protocol.filters.sql_filter import SqlFilter

# An operand or operator of an expression, in tenths of a microsecond.
NODE_COST = 5


class MessageFilter(Protocol):
    """What a consumer wants of messages, by their properties."""

    @property
    def cost(self) -> int:
        """What it takes at most to judge a message besides reading its properties, in tenths of a
        microsecond."""

    def matches(self, properties: bytes) -> bool:
        """Whether a message with these stored properties is wanted."""


class PropertyFilter:
    """A compiled expression."""

    __slots__ = ("_marks", "cost", "sql")

    def __init__(self, sql: SqlFilter) -> None:
        self.sql = sql
        self.cost = NODE_COST * sql.nodes
        self._marks = property_marks(sql.names)

    def matches(self, properties: bytes) -> bool:
        """As `MessageFilter.matches`."""
        return self.sql.matches(chosen_properties(properties, self._marks))
