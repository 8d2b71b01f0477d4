"""SQL92 expressions and messages for them: the documented ones, corners, and generated ones.

The generated ones are mostly right. test_sql_filter.py has the values that they are compared with.
"""

from __future__ import annotations

import random

NAMES = ("a", "b", "c", "TAGS", "_x$1", "missing", "tags")
# Texts that a number may be, is nearly, or is not; strings; truths.
VALUES = (
    "0", "-0", "+5", "5", " 5", "5 ", "05", "5.", "5.0", ".5", "-.5e1", "5e0", "5f", "5D", "5L",
    "1_0", "10", "100", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "1e400", "-1e400", "4.9e-324", "1e-400", "0x1p3", "0x1.8P1f", "0x10", "NaN", "-NaN", "nan",
    "Infinity", "-Infinity", "inf", "0.0", "-0.0", "3.14", "3.140", "\uff15", "\u0665",
    "\U0001d7d3", "000000000000000000000005", "true", "TRUE", "tRue", "false", "yes", "x", "X",
    "it's", "it''s", "'", "ü", "--", "null", "+", "-", ".", "e5", "\t5\n", "\u00a05", "5\u2003",
)  # fmt: skip
NUMBERS = (
    "0", "5", "5L", "10l", "100", "2147483647", "2147483648", "9223372036854775807", "5.0", "5.",
    ".5", "5e0", "5E+0", "00.5e1", "3.14", "1e-320", "9007199254740992.0", "1e308", "4.9e-324",
)  # fmt: skip
STRINGS = tuple(["'" + value.replace("'", "''") + "'" for value in ("", *VALUES)])
SPACES = (" ", "  ", "\t", "\n", "\r\n", "\f", " /* it's * a ** comment */ ", " -- a comment\n")
# Symbols that stand in the way now and then; most are refused, or leave something unread.
ODD = (
    "!", "!=", "==", '"x"', "'x", "/* x", "*", "%", "LIKE 'x'", "007", "0L", "1e", "a.b", "a-b",
    "9223372036854775808", "1e400", "\u017f", "\u212a", "\v", "\u00a0", "#", ";", "()", "in ()",
    "in (5)", "is", "0.0",
)  # fmt: skip
# Cases that the generator meets too seldom: conditions and literals of two kinds, letters that are
# not.
CORNERS = (
    "TRUE = a", "FALSE <> a", "(a = '5') = a", "(a = '5') = (b = '5')", "a = (b IS NULL)",
    "NOT a = 'x'", "NOT a IS NULL", "NOT a", "1 = TRUE", "'true' = TRUE", "TRUE = 'true'",
    "TRUE = TRUE", "TRUE = NULL", "NULL IS NULL", "NULL = a", "NULL AND a", "1 IS NULL", "-a = 5",
    "-'x' = a", "-(a > 5) IS NULL", "- - a IS NULL", "a = --\n5", "a > -'x'", "a BETWEEN 5 AND -5",
    "a BETWEEN 5 AND 4", "a BETWEEN 'x' AND 5", "a BETWEEN NULL AND 5",
    "9007199254740993 = 9007199254740992.0", "9007199254740993 > 9007199254740992.0",
    "9007199254740992.0 < 9007199254740993", "a BETWEEN 9007199254740993 AND 9007199254740992.0",
    "2147483647 = 2147483647L", "5 = 5.0", "'5' = 5", "5 = 'x'", "'x' = 5.0", "(a) IN ('5')",
    "+a IN ('5')", "-a IN ('5')", "'5' IN ('5')", "a = b = c", "a > b > c", "a IS NULL IS NULL",
    "a IS NOT NULL = TRUE", "a i\u017f null", "\u017f = '5'", "\u212a = '5'", "a = ''''",
    "a IN ('''', 'it''s')", "", " ", "/**/", "/***/ a = 5 /* ** / */", "a = 5 -- x\r",
    "a = 5 /*/ */", "$ = 5", "_ IS NULL", "a.b = 5", "5l = a", "5.e1 = a", ".5 = a", "5.l = a",
    "a = 5e", "a = .e5", "a=5or b=5", "a=5AND b=5", "a IN('5')",
)  # fmt: skip
# The language in RocketMQ's manual and examples: each line of its grammar, each kind of constant,
# and the expressions of its example programs.
DOCUMENTED = (
    "a > 5 AND b = 'abc'", "a between 0 and 3",
    "(TAGS is not null and TAGS in ('TagA', 'TagB')) and (a is not null and a between 0 and 3)",
    "a > 5", "a >= 5", "a < 5", "a <= 5", "a BETWEEN 5 AND 100", "a NOT BETWEEN 5 AND 100",
    "a = 5", "a <> 5", "a = 3.1415", "a > 3.1415", "b = 'abc'", "b <> 'abc'",
    "b IN ('abc', 'x', '5')", "b NOT IN ('abc', 'x')", "a IS NULL", "a IS NOT NULL",
    "a > 5 OR b = 'abc'", "NOT (a > 5)", "a = b", "c = TRUE", "c = true", "c = FALSE",
    "c <> TRUE", "(a > 5 AND b = 'abc') OR NOT (c IS NULL)", "TAGS = 'TagA'",
)  # fmt: skip
SYMBOLS = ("=", "<>", ">", ">=", "<", "<=")


class Generator:
    """Expressions that are mostly right, and messages for them."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance

    def expression(self) -> str:
        words = self._condition(self._random.randint(0, 3))
        kind = self._random.random()
        if kind < 0.25:
            words = self._spoilt(words)
        elif kind < 0.35:
            words.insert(self._random.randint(0, len(words)), self._pick(ODD))
        return self._joined(words)

    def properties(self) -> dict[str, str]:
        some = self._random.sample(NAMES[:5], self._random.randint(0, 5))
        found = {name: self._pick(VALUES) for name in some}
        if self._random.random() < 0.2:  # what the documented ones ask for
            found |= {"b": "abc", "TAGS": self._pick(("TagA", "TagB"))}
        return found

    def _pick(self, of: tuple[str, ...]) -> str:
        return self._random.choice(of)

    def _cased(self, word: str) -> str:
        return self._pick((word, word.lower(), word.capitalize()))

    def _condition(self, depth: int) -> list[str]:
        kind = self._random.randrange(10 if depth else 6)
        if kind >= 8:
            return ["(", *self._condition(depth - 1), ")"]
        if kind >= 6:
            joint = self._cased(self._pick(("AND", "OR")))
            return [*self._condition(depth - 1), joint, *self._condition(depth - 1)]
        if kind == 5:
            return [self._cased("NOT"), "(", *self._condition(max(0, depth - 1)), ")"]
        return self._comparison(kind, depth)

    def _comparison(self, kind: int, depth: int) -> list[str]:
        left = self._operand(depth)
        denied = [self._cased("NOT")] if self._random.random() < 0.4 else []
        if kind == 0:
            return [*left, self._cased("IS"), *denied, self._cased("NULL")]
        if kind == 1:
            listed = [
                word for _ in range(self._random.randint(1, 6)) for word in (",", self._string())
            ]
            return [*left, *denied, self._cased("IN"), "(", *listed[1:], ")"]
        if kind == 2:
            low, high = self._operand(depth), self._operand(depth)
            return [*left, *denied, self._cased("BETWEEN"), *low, self._cased("AND"), *high]
        return [*left, self._pick(SYMBOLS), *self._operand(depth)]

    def _string(self) -> str:
        return self._pick(STRINGS)

    def _operand(self, depth: int) -> list[str]:
        kind = self._random.random()
        if kind < 0.5:
            return [self._pick(NAMES)]
        if kind < 0.75:
            return [self._pick(NUMBERS)]
        if kind < 0.85:
            return [self._string()]
        if kind < 0.91:
            return [self._pick(("-", "+", "- -", "NOT")), *self._operand(depth)]
        if kind < 0.95:
            return [self._cased(self._pick(("TRUE", "FALSE", "NULL")))]
        return ["(", *(self._condition(depth - 1) if depth else self._operand(0)), ")"]

    def _spoilt(self, words: list[str]) -> list[str]:
        """A word less, twice, or in another place."""
        words = list(words)
        at = self._random.randrange(len(words))
        word = words.pop(at)
        kind = self._random.randrange(3)
        if kind:
            words.insert(self._random.randint(0, len(words)), word)
        if kind == 2:
            words.insert(at, word)
        return words

    def _joined(self, words: list[str]) -> str:
        return "".join([word + self._pick(SPACES[:1] * 6 + SPACES) for word in words])
