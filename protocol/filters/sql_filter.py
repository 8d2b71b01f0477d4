"""SQL92 filters: an expression over the properties of a message, compiled once, asked many times.

    wanted = compile_sql("amount BETWEEN 10 AND 99 AND (TAGS = 'a' OR region IN ('n', 's'))")
    wanted.matches({"amount": "17", "TAGS": "a"})

The language is that of RocketMQ 4.9's filter module (`SelectorParser.jj`): comparisons with =, <>,
>, >=, <, <=, [NOT] BETWEEN, [NOT] IN with strings, IS [NOT] NULL, joined by AND, OR and NOT; names
of properties, strings in single quotes (two of them for one inside), integers, doubles, TRUE, FALSE
and NULL; keywords in any case, names as they are; comments `-- to the end of the line` and
`/* ... */`. There is no arithmetic and no LIKE. What it all means is said in `sql_meaning.py`.

Three things are other than there, and tests/interop/clients/test_sql_filter.py holds that no more
are: what follows a complete expression is an error (RocketMQ reads `a > 1 b < 2` as `a > 1`, and
leaves the rest without a word); 0.0 is a number like others (RocketMQ refuses it); `--` begins a
comment also on the last line (RocketMQ reads two minus signs there, which nobody means).

Expressions come from clients: their length and depth are bounded, the parser has no recursion, and
nothing is made into code. A word of an expression costs some 20 us, so who must not stand still for
that long compiles in steps. lark is imported with this module, which takes 50 ms, and the parser is
made at its first use, in another 30: import it where an expression is at hand.
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.property_filter import RefusedForDepth
from aerobee.protocol.filters.sql_meaning import (
    MAX_DEPTH,
    Meaning,
    Node,
    Properties,
    TooDeep,
    Wrong,
    truth_of,
)
from aerobee.protocol.filters.sql_values import Incomparable

#: Characters of an expression; a list of some thousand values is what takes most.
MAX_EXPRESSION: Final = 65_536
# Words that are read in one step: 0.1 ms.
_STEP_WORDS: Final = 6

_GRAMMAR: Final = r"""
    ?start: condition

    ?condition: conjunction
        | conjunction (_OR conjunction)+ -> disjunction

    ?conjunction: equality (_AND equality)*

    ?equality: comparison
        | equality "=" comparison -> equal
        | equality _UNEQUAL comparison -> unequal
        | equality _IS NULL -> is_null
        | equality _IS _NOT NULL -> is_not_null

    ?comparison: operand
        | comparison ORDER operand -> order
        | comparison _BETWEEN operand _AND operand -> between
        | comparison _NOT _BETWEEN operand _AND operand -> not_between
        | comparison _IN "(" STRING ("," STRING)* ")" -> one_of
        | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> none_of

    ?operand: "+" operand
        | "-" operand -> negative
        | _NOT operand -> negation
        | "(" condition ")" -> group
        | STRING -> text
        | DECIMAL -> decimal
        | FLOATING -> floating
        | TRUE -> true
        | FALSE -> false
        | NULL -> null
        | NAME -> property

    _AND: "and"i
    _OR: "or"i
    _NOT: "not"i
    _IS: "is"i
    _IN: "in"i
    _BETWEEN: "between"i
    NULL: "null"i
    TRUE: "true"i
    FALSE: "false"i
    NAME: /[a-z_$][a-z0-9_$]*/i
    STRING: /'(?:''|[^'])*'/
    DECIMAL: /0|[1-9][0-9]*l?/i
    FLOATING.2: /[0-9]+\.[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
    _UNEQUAL.2: "<>"
    ORDER: /[<>]=?/

    %ignore /[ \t\n\r\f]+/
    LINE_COMMENT.2: /--[^\n\r]*/
    BLOCK_COMMENT.2: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
    %ignore LINE_COMMENT
    %ignore BLOCK_COMMENT
"""
_MEANING: Final = Meaning()
_SAID: Final = {"STRING": "a string in single quotes", "RPAR": ")", "LPAR": "(", "COMMA": ","}
_OF_OTHERS: Final = frozenset({"LIKE", "ESCAPE", "CONTAINS", "STARTSWITH", "ENDSWITH"})


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression; `names` are the properties that it asks for, sorted.

    `depth` is how many operators and parentheses are within each other, `nodes` how many operands
    and operators there are: what a message costs at most.
    """

    expression: str
    names: tuple[str, ...]
    depth: int
    nodes: int
    _evaluate: Callable[[Properties], bool | None] = field(repr=False, compare=False)

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties, by name, matches."""
        try:
            return self._evaluate(properties) is True
        except Incomparable:
            return False

    def evaluate(self, properties: Properties) -> bool | None:
        """True, false or null. Raises Incomparable where a text should be a number and cannot be
        read as such."""
        return self._evaluate(properties)


def compile_sql(expression: str) -> SqlFilter:
    """The filter that an expression means.

    Raises BadRequest (SUBSCRIPTION_PARSE_FAILED), which says what is wrong and at which character.
    """
    steps = compile_in_steps(expression)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            compiled: SqlFilter = end.value
            return compiled


def compile_in_steps(expression: str) -> Generator[None, None, SqlFilter]:
    """Compile as `compile_sql` does, in steps of some words each."""
    if len(expression) > MAX_EXPRESSION:
        size = f"{len(expression)} characters, and {MAX_EXPRESSION} is the most"
        raise BadRequest(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the expression has {size}")
    try:
        node = yield from _parse(expression)
        names = tuple(sorted(node.names))
        return SqlFilter(expression, names, node.depth, node.nodes, truth_of(node))
    except Wrong as wrong:
        raise _refusal(expression, wrong) from None


def load_parser() -> None:
    """Make the parser, if it is not made yet: the next expression then costs its words only."""
    # The patterns of words are compiled with the first one.
    compile_sql("a = 1")


def _parse(text: str) -> Generator[None, None, Node]:
    parsing = _parser().parse_interactive(text)
    try:
        for number, _ in enumerate(parsing.iter_parse(), 1):
            if number % _STEP_WORDS == 0:
                yield
        # After the last word a whole list may still be built, which costs as much as it is long.
        yield
        node = parsing.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedCharacters as error:
        position = error.pos_in_stream or 0
        raise Wrong(position, _odd_character(text[position:])) from None
    except UnexpectedToken as error:
        accepts = parsing.accepts()  # type: ignore[no-untyped-call]
        raise _odd_token(text, error.token, accepts) from None
    assert isinstance(node, Node)
    return node


@cache
def _parser() -> Lark:
    # With the basic lexer keywords are keywords everywhere; LALR keeps its own stack.
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_MEANING, g_regex_flags=re.A)


def _refusal(text: str, wrong: Wrong) -> BadRequest:
    position = wrong.position
    near = text[position : position + 20]
    place = f"at character {position + 1} ({near!r})" if near else "at the end"
    remark = f"SQL92 expression, {place}: {wrong}"
    if isinstance(wrong, TooDeep):
        return RefusedForDepth(remark, MAX_DEPTH)
    return BadRequest(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)


def _odd_character(rest: str) -> str:
    if rest[0] == "'":
        return "this string has no closing quote"
    if rest.startswith("/*"):
        return "this comment has no end"
    hints = {'"': "; strings stand in single quotes", "!": "; not equal is <>"}
    return f"{rest[0]!r} is no part of the language{hints.get(rest[0], '')}"


def _odd_token(text: str, token: Token, accepts: set[str]) -> Wrong:
    ended = token.type == "$END"
    found = "the expression ends" if ended else f"found {token[:20]!r}"
    position = len(text) if ended else token.start_pos or 0
    if token.upper() in _OF_OTHERS:
        return Wrong(position, f"{token.upper()} is not in RocketMQ's SQL92")
    if "$END" in accepts:
        return Wrong(position, f"{found} behind a complete expression; AND or OR can follow it")
    if "NAME" in accepts:
        return Wrong(position, f"{found} where a property or a value is wanted")
    wanted = sorted([_SAID.get(name, name.lstrip("_")) for name in accepts])
    return Wrong(position, f"{found} where {' or '.join(wanted)} is wanted")
