"""The meaning of a SQL92 filter: each rule of the grammar is a function of a message's properties.

The meaning is that of RocketMQ 4.9's filter module (`org.apache.rocketmq.filter.expression`), which
has its own idea of SQL:

- A property is a text, or null where a message has none. Against a number it is read as a number of
  that number's type (32-bit, 64-bit or double); two properties are ordered as doubles. A text that
  is no such number ends the evaluation, and the message does not match, NOT or OR around it or not,
  unless the operand before it has decided that AND or OR.
- Conditions are true, false or null, and only true matches. `x = null` counts from the left: a null
  on the left gives null, a null on the right false, two nulls are equal.
- A property alone, where a condition is wanted, is false, or null where it is missing.
- NOT belongs to the next operand: `NOT a = 1` is `(NOT a) = 1`.
- `=` with a condition on its left and a text on its right ends the evaluation in the same way.

A node knows as much of its type as the text tells, so that errors are found when it is built, and
the `_Part` that it leaves does no more for a message than has to be done for each.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from lark import Token, Transformer, v_args

from aerobee.protocol.filters.sql_values import (
    INTEGER_BITS,
    LONG_BITS,
    Pair,
    ValueKind,
    readers,
    sameness,
)

#: Levels of operators and parentheses within each other: each costs a call for every message, and
#: Python has room for a thousand. A caller may ask for less.
MAX_DEPTH: Final = 100

Properties = Mapping[str, str | None]
Evaluate = Callable[[Properties], Any]


class Wrong(Exception):
    """The expression means nothing; `position` is where in the text, from 0."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(what)
        self.position = position


class TooDeep(Wrong):
    """There are more than MAX_DEPTH levels."""


class _Part(msgspec.Struct, gc=False, frozen=True):
    """A part of a compiled expression. There may be hundreds of thousands, which no collection of
    garbage looks at: closures held the event loop up for a second each time."""


class _Value(_Part, frozen=True):
    value: Any

    def __call__(self, row: Properties) -> Any:
        return self.value


class _Property(_Part, frozen=True):
    name: str

    def __call__(self, row: Properties) -> str | None:
        return row.get(self.name)


class _Present(_Part, frozen=True):
    """A property where a condition is wanted."""

    name: str

    def __call__(self, row: Properties) -> bool | None:
        return None if row.get(self.name) is None else False


class _Nothing(_Part, frozen=True):
    """Null; but the operand counts as far as it may fail."""

    of: Evaluate

    def __call__(self, row: Properties) -> None:
        self.of(row)


class _Any(_Part, frozen=True):
    """OR: true as soon as one is; null if none is and one is null."""

    conditions: tuple[Evaluate, ...]

    def __call__(self, row: Properties) -> bool | None:
        result: bool | None = False
        for condition in self.conditions:
            found = condition(row)
            if found:
                return True
            if found is None:
                result = None
        return result


class _All(_Part, frozen=True):
    """AND: false as soon as one is; null if none is and one is null."""

    conditions: tuple[Evaluate, ...]

    def __call__(self, row: Properties) -> bool | None:
        result: bool | None = True
        for condition in self.conditions:
            found = condition(row)
            if found is None:
                result = None
            elif not found:
                return False
        return result


class _Not(_Part, frozen=True):
    condition: Evaluate

    def __call__(self, row: Properties) -> bool | None:
        found = self.condition(row)
        return None if found is None else not found


class _Equal(_Part, frozen=True):
    same: Pair
    left: Evaluate
    right: Evaluate

    def __call__(self, row: Properties) -> bool | None:
        one, other = self.left(row), self.right(row)
        if other is None:
            return one is None
        return None if one is None else self.same(one, other)


class _Ordered(_Part, frozen=True):
    left: Evaluate
    read_left: Callable[[Any], Any]
    order: Pair
    right: Evaluate
    read_right: Callable[[Any], Any]

    def __call__(self, row: Properties) -> bool | None:
        one = self.left(row)
        if one is None:
            return None
        other = self.right(row)
        return None if other is None else self.order(self.read_left(one), self.read_right(other))


class _Bounded(_Part, frozen=True):
    """A property against a number, the condition that most filters are made of."""

    name: str
    read: Callable[[Any], Any]
    order: Pair
    bound: Any

    def __call__(self, row: Properties) -> bool | None:
        value = row.get(self.name)
        return None if value is None else self.order(self.read(value), self.bound)


class _SameText(_Part, frozen=True):
    name: str
    text: str

    def __call__(self, row: Properties) -> bool | None:
        value = row.get(self.name)
        return None if value is None else value == self.text


class _Member(_Part, frozen=True):
    name: str
    values: frozenset[str]

    def __call__(self, row: Properties) -> bool | None:
        value = row.get(self.name)
        return None if value is None else value in self.values


_ORDERS: Final[dict[str, Pair]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """An operand. `name` is a property's; `number` that of a number; `literal` says that it stands
    in the text as it is, `condition` that it may stand where true or false is wanted. `nodes`
    counts it and what it is made of."""

    evaluate: Evaluate
    kind: ValueKind
    position: int
    names: frozenset[str] = frozenset()
    depth: int = 1
    nodes: int = 1
    name: str | None = None
    number: int | float | None = None
    literal: bool = False
    condition: bool = False


@v_args(inline=True)
class Meaning(Transformer[Token, Node]):
    """A method for each rule of the grammar in `sql_filter.py`. Raises Wrong."""

    # --- operands ---------------------------------------------------------------------------

    def property(self, token: Token) -> Node:
        name = str(token)
        return Node(_Property(name), ValueKind.TEXT, _at(token), frozenset({name}), name=name)

    def text(self, token: Token) -> Node:
        return _literal(token, ValueKind.TEXT, _text_of(token))

    def decimal(self, token: Token) -> Node:
        value = int(token.rstrip("lL")) if len(token) <= 20 else 1 << LONG_BITS
        if value >= 1 << (LONG_BITS - 1):
            raise Wrong(_at(token), f"{_short(token)} is more than an integer of 64 bits holds")
        kind = ValueKind.INTEGER if value < 1 << (INTEGER_BITS - 1) else ValueKind.LONG
        return replace(_literal(token, kind, value), number=value)

    def floating(self, token: Token) -> Node:
        value = float(token)
        if value == float("inf"):
            raise Wrong(_at(token), f"{_short(token)} is more than a double holds")
        return replace(_literal(token, ValueKind.DOUBLE, value), number=value)

    def true(self, token: Token) -> Node:
        return replace(_literal(token, ValueKind.BOOLEAN, True), condition=True)

    def false(self, token: Token) -> Node:
        return replace(_literal(token, ValueKind.BOOLEAN, False), condition=True)

    def null(self, token: Token) -> Node:
        return replace(_literal(token, ValueKind.NOTHING, None), condition=True)

    def group(self, inner: Node) -> Node:
        return replace(inner, depth=_depth(inner))

    def negative(self, inner: Node) -> Node:
        if inner.number is not None:
            value = -inner.number
            return replace(
                inner, evaluate=_Value(value), number=value, literal=False, depth=_depth(inner)
            )
        return Node(
            _Nothing(inner.evaluate),
            ValueKind.NOTHING, inner.position, inner.names, _depth(inner), 1 + inner.nodes,
        )  # fmt: skip

    # --- conditions -------------------------------------------------------------------------

    def disjunction(self, *nodes: Node) -> Node:
        return _condition(_Any(tuple([truth_of(node) for node in nodes])), *nodes)

    def conjunction(self, *nodes: Node) -> Node:
        return _condition(_All(tuple([truth_of(node) for node in nodes])), *nodes)

    def negation(self, inner: Node) -> Node:
        return _condition(_Not(truth_of(inner)), inner)

    def equal(self, left: Node, right: Node) -> Node:
        for node in (left, right):
            if node.literal and node.kind is ValueKind.NOTHING:
                raise Wrong(node.position, "NULL is not compared; write IS NULL or IS NOT NULL")
        truths = left.literal and left.condition, right.literal and not right.condition
        if all(truths):
            raise Wrong(right.position, "this is not compared with TRUE or FALSE")
        return _condition(_equal(left, right), left, right)

    def unequal(self, left: Node, right: Node) -> Node:
        return self.negation(self.equal(left, right))

    def is_null(self, left: Node, null: Token) -> Node:
        return _condition(_equal(left, self.null(null)), left)

    def is_not_null(self, left: Node, null: Token) -> Node:
        return self.negation(self.is_null(left, null))

    def order(self, left: Node, symbol: Token, right: Node) -> Node:
        return _condition(_ordered(left, _ORDERS[symbol], right), left, right)

    def between(self, value: Node, low: Node, high: Node) -> Node:
        inside = _ordered(value, operator.ge, low), _ordered(value, operator.le, high)
        if low.literal and high.literal and _ordered(high, operator.lt, low)({}):
            raise Wrong(low.position, "BETWEEN has its higher bound first")
        return _condition(_All(inside), value, low, high)

    def not_between(self, value: Node, low: Node, high: Node) -> Node:
        outside = _ordered(value, operator.lt, low), _ordered(value, operator.gt, high)
        return _condition(_Any(outside), value, low, high)

    def one_of(self, left: Node, *tokens: Token) -> Node:
        return _condition(self._member(left, tokens), left)

    def none_of(self, left: Node, *tokens: Token) -> Node:
        return _condition(_Not(self._member(left, tokens)), left)

    def _member(self, left: Node, tokens: Sequence[Token]) -> Evaluate:
        name = left.name
        if name is None:
            raise Wrong(left.position, "IN asks of a property, and this is none")
        return _Member(name, frozenset([_text_of(token) for token in tokens]))


def _at(token: Token) -> int:
    return token.start_pos or 0


def _text_of(token: Token) -> str:
    """The text of a string in quotes."""
    return token[1:-1].replace("''", "'")


def _short(token: Token) -> str:
    return token if len(token) <= 24 else f"{token[:20]}..."


def _literal(token: Token, kind: ValueKind, value: object) -> Node:
    return Node(_Value(value), kind, _at(token), literal=True)


def _depth(*nodes: Node) -> int:
    depth = 1 + max([node.depth for node in nodes])
    if depth > MAX_DEPTH:
        raise TooDeep(nodes[0].position, f"this is nested more than {MAX_DEPTH} levels deep")
    return depth


def _condition(evaluate: Evaluate, *nodes: Node) -> Node:
    """The node of an operator on these."""
    names = frozenset().union(*[node.names for node in nodes])
    count = 1 + sum([node.nodes for node in nodes])
    depth, position = _depth(*nodes), nodes[0].position
    return Node(evaluate, ValueKind.BOOLEAN, position, names, depth, count, condition=True)


def truth_of(node: Node) -> Evaluate:
    """The node where true, false or null is wanted."""
    if node.condition:
        return node.evaluate
    if (name := node.name) is None:
        raise Wrong(node.position, "this is a value where a condition is wanted")
    return _Present(name)


def _equal(left: Node, right: Node) -> Evaluate:
    if left.name is not None and right.number is not None:
        read_left, read_right = readers(left.kind, right.kind)
        return _Bounded(left.name, read_left, operator.eq, read_right(right.number))
    if (
        left.name is not None
        and right.kind is ValueKind.TEXT
        and isinstance(right.evaluate, _Value)
    ):
        return _SameText(left.name, right.evaluate.value)
    return _Equal(sameness(left.kind, right.kind), left.evaluate, right.evaluate)


def _ordered(left: Node, order: Pair, right: Node) -> Evaluate:
    """`order` of two numbers, one of which may be a property's."""
    for node in (left, right):
        if node.literal and node.number is None:
            raise Wrong(node.position, "only numbers and properties have an order")
        if node.condition:
            hint = "NOT takes the next operand alone, parentheses give it more"
            raise Wrong(node.position, f"a condition has no order; {hint}")
    read_left, read_right = readers(left.kind, right.kind)
    if left.name is not None and right.number is not None:
        return _Bounded(left.name, read_left, order, read_right(right.number))
    return _Ordered(left.evaluate, read_left, order, right.evaluate, read_right)
