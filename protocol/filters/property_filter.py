"""Filters over the properties of a message: the types of their expressions, and how readers of
stored records ask them.

A row of `EXPRESSION_TYPES` is all that a consumer, the broker and the pipeline know of a type. TAG
has no row: tags are compared by their hash in the queue's entry (`subscription.py`). Parsers are
imported with the first expression: that takes 80 ms and some megabytes, which most processes need
not spend.

Of a message's properties only those are read that the expression asks for; messages have many more.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.message.properties import chosen_properties, property_marks

TAG_TYPE: Final = "TAG"
SQL_TYPE: Final = "SQL92"

# An operand or operator of an expression, in tenths of a microsecond.
NODE_COST = 5
# Memory of a filter, measured: beside its text; for each character, of which a list of short values
# takes most; for each operand and operator.
FILTER_BYTES = 512
CHAR_BYTES = 16
_NODE_BYTES = 300


#: The type and the text of an expression.
TypedExpression: TypeAlias = tuple[str, str]


class CompiledExpression(Protocol):
    """A compiled expression, to be asked about the properties of a message."""

    @property
    def expression(self) -> str:
        """Its text."""

    @property
    def names(self) -> tuple[str, ...]:
        """The properties that it asks for, sorted."""

    @property
    def depth(self) -> int:
        """The levels of operators and parentheses within each other."""

    @property
    def nodes(self) -> int:
        """The number of operands and operators: the most that a message costs."""

    def matches(self, properties: Mapping[str, str | None], /) -> bool:
        """Whether a message with these properties, by name, matches."""


class RefusedForDepth(BadRequest):
    """The expression has more than `levels`, the most that a setting may allow."""

    def __init__(self, remark: str, levels: int) -> None:
        super().__init__(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        self.levels = levels


class ExpressionType(NamedTuple):
    """A type of expressions.

    `load` imports and prepares the parser. `compile_in_steps` makes an expression's compiled form
    in steps of 0.1 ms each; it raises BadRequest (SUBSCRIPTION_PARSE_FAILED), which says what is
    wrong and at which character.
    """

    load: Callable[[], None]
    compile_in_steps: Callable[[str], Generator[None, None, CompiledExpression]]


def _load_sql() -> None:
    from aerobee.protocol.filters import sql_filter

    sql_filter.load_parser()


def _compile_sql(text: str) -> Generator[None, None, CompiledExpression]:
    from aerobee.protocol.filters import sql_filter

    return sql_filter.compile_in_steps(text)


EXPRESSION_TYPES: Final = {SQL_TYPE: ExpressionType(_load_sql, _compile_sql)}
#: The types of subscriptions as a text for errors.
SUBSCRIPTION_TYPES: Final = " or ".join([TAG_TYPE, *EXPRESSION_TYPES])


def compile_expression(typed: TypedExpression) -> CompiledExpression:
    """Compile an expression at once.

    Raises BadRequest as `ExpressionType.compile_in_steps` does, or if there is no such type.
    """
    kind, text = typed
    check_type(kind)
    steps = EXPRESSION_TYPES[kind].compile_in_steps(text)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            compiled: CompiledExpression = end.value
            return compiled


def check_type(kind: str) -> None:
    """Raise BadRequest (SUBSCRIPTION_PARSE_FAILED) if the type has no row."""
    if kind not in EXPRESSION_TYPES:
        raise BadRequest(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"there is no expression type {kind[:64]!r}; it is {SUBSCRIPTION_TYPES}",
        )


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

    __slots__ = ("_marks", "compiled", "cost", "map_test", "size")

    def __init__(self, compiled: CompiledExpression, map_test: MapTest | None = None) -> None:
        self.compiled = compiled
        self.map_test = map_test
        self.cost = NODE_COST * compiled.nodes
        text_bytes = CHAR_BYTES * len(compiled.expression)
        self.size = FILTER_BYTES + text_bytes + _NODE_BYTES * compiled.nodes
        self._marks = property_marks(compiled.names)

    def matches(self, properties: bytes) -> bool:
        """Whether a message with these properties passes (see `MessageFilter.matches`)."""
        return self.compiled.matches(chosen_properties(properties, self._marks))
