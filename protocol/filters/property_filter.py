"""A SQL92 expression as readers of stored records use it: asked of a message's properties as they
stand in its record.

Of the properties only those are read that the expression asks for; messages have many more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from aerobee.protocol.message.properties import chosen_properties, property_marks

if TYPE_CHECKING:
    # It brings the parser with it, which a broker without such consumers does not need.
    from aerobee.protocol.filters.sql_filter import SqlFilter

# An operand or operator of an expression, in tenths of a microsecond.
NODE_COST = 5
# Memory of a filter, measured: beside its text; for each character, of which a list of short values
# takes most; for each operand and operator.
FILTER_BYTES = 512
CHAR_BYTES = 16
_NODE_BYTES = 300


class MapTest(NamedTuple):
    """How bit maps tell that a message is not wanted (`bloom.py`): of a message stored at or above
    the log offset `since`, the map lacks a bit of `mask`. Older maps know nothing of the filter."""

    mask: int
    since: int


class MessageFilter(Protocol):
    """Judges messages by their properties."""

    @property
    def cost(self) -> int:
        """The longest time to judge a message besides reading its properties, in tenths of a
        microsecond."""

    @property
    def size(self) -> int:
        """The bytes of memory that it takes."""

    @property
    def map_test(self) -> MapTest | None:
        """The test of bit maps for this filter; None while they hold nothing of it."""

    def matches(self, properties: bytes) -> bool:
        """Whether a message with these stored properties is wanted."""


class PropertyFilter:
    """A compiled expression; `map_test` is for the one group and topic that it is of, if it is."""

    __slots__ = ("_marks", "cost", "map_test", "size", "sql")

    def __init__(self, sql: SqlFilter, map_test: MapTest | None = None) -> None:
        self.sql = sql
        self.map_test = map_test
        self.cost = NODE_COST * sql.nodes
        self.size = FILTER_BYTES + CHAR_BYTES * len(sql.expression) + _NODE_BYTES * sql.nodes
        self._marks = property_marks(sql.names)

    def matches(self, properties: bytes) -> bool:
        """Whether a message with these properties passes (see `MessageFilter.matches`)."""
        return self.sql.matches(chosen_properties(properties, self._marks))
