"""SQL92 filters. That they mean what RocketMQ's mean is tests/interop/clients/test_sql_filter.py's
claim; here is what must not be lost without Java at hand, and what is ours: errors, bounds,
deviations."""

from __future__ import annotations

import contextlib
import gc
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.sql_filter import MAX_EXPRESSION, SqlFilter, compile_sql
from aerobee.protocol.filters.sql_meaning import MAX_DEPTH
from aerobee.protocol.filters.sql_values import Incomparable


def matches(expression: str, **properties: str) -> bool:
    return compile_sql(expression).matches(properties)


def evaluated(expression: str, **properties: str) -> bool | str | None:
    try:
        return compile_sql(expression).evaluate(properties)
    except Incomparable:
        return "incomparable"


def refused(expression: str) -> str:
    with pytest.raises(BadRequest) as caught:
        compile_sql(expression)
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    return caught.value.remark


@pytest.mark.parametrize(
    ("expression", "matching", "other"),
    [
        ("a = 'x'", "x", "X"),
        ("a <> 'x'", "y", "x"),
        ("a = 'it''s'", "it's", "it''s"),
        ("a = ''''", "'", "''"),
        ("a = 5", "+05", "6"),
        ("a > 5", "6", "5"),
        ("a >= 5", "5", "4"),
        ("a < -5", "-6", "-5"),
        ("a <= 5.5", "5.5", "5.6"),
        ("a > 2147483648L", "2147483649", "1"),
        ("a BETWEEN 2 AND 3", "3", "4"),
        ("a not between 2 and 3", "4", "3"),
        ("a in ('1', 'x')", "1", "01"),
        ("a NOT IN ('1', 'x')", "2", "x"),
        ("a IS NULL OR a = 'x'", "x", "y"),
        ("a = TRUE", "tRuE", "1"),
        ("a = 'x' /* no, */ -- or\n OR a = 'y' -- at the end", "y", "z"),
    ],
)
def test_comparisons(expression: str, matching: str, other: str) -> None:
    assert matches(expression, a=matching)
    assert not matches(expression, a=other)


def test_a_missing_property_is_null_and_null_is_no_match() -> None:
    for expression in ("a = 1", "a <> 1", "a > 1", "a in ('1')", "a not in ('1')", "a = 'x'"):
        assert evaluated(expression) is None
        assert evaluated(f"NOT ({expression})") is None
    assert evaluated("a IS NULL") is True
    assert evaluated("a IS NOT NULL") is False
    assert evaluated("a = 1 AND b = '1'", b="2") is False
    assert evaluated("a = 1 OR b = '1'", b="1") is True
    # Equality counts from its left side.
    assert evaluated("1 = a") is False
    assert evaluated("a = b") is True


def test_a_text_that_is_no_number_ends_the_evaluation() -> None:
    assert evaluated("a > 5", a="x") == "incomparable"
    assert evaluated("NOT (a > 5)", a="x") == "incomparable"
    assert evaluated("a > 5 OR b = 'y'", a="x", b="y") == "incomparable"
    assert evaluated("b = 'y' OR a > 5", a="x", b="y") is True
    assert not matches("a <> 5", a="5.0")
    assert not matches("a = 5", a="2147483648")


def test_a_property_alone_and_not_before_a_comparison_are_what_they_are_there() -> None:
    assert evaluated("a", a="true") is False
    assert evaluated("a") is None
    # (NOT a) = 1: a condition is no number.
    assert evaluated("NOT a = 1", a="2") is False
    assert evaluated("NOT a IS NULL") is True


def test_conditions_and_values_of_two_kinds() -> None:
    assert evaluated("TRUE = a", a="true") == "incomparable"
    assert evaluated("1 = TRUE") is False
    assert evaluated("(a = 1) = (b = 1)", a="2", b="2") is True
    assert evaluated("-a = 5", a="-5") is None
    # An integer is 32 bits wide where its number is; beside a double both are doubles.
    assert evaluated("a > 2147483647", a="2147483648") == "incomparable"
    assert evaluated("a > 2147483648", a="2147483649") is True
    assert evaluated("9007199254740993 = 9007199254740992.0") is True


def test_texts_are_numbers_by_javas_rules() -> None:
    for text in ("5", "+5", "005", "\uff15", "0" * 20_000 + "5"):
        assert evaluated("a = 5", a=text) is True
    for text in (" 5", "5.0", "5L", "1_0", "", "\U0001d7d3"):
        assert evaluated("a = 5", a=text) == "incomparable"
    for text in (" 5 ", "5f", "5.", "0x1.4p2", "50e-1"):
        assert evaluated("a = 5.0", a=text) is True
    for text in ("nan", "inf", "1_0.0", "\uff15", "0x5"):
        assert evaluated("a = 5.0", a=text) == "incomparable"


def test_doubles_keep_javas_order() -> None:
    assert matches("a > 0.0", a="4.9e-324")
    assert matches("a < 0.0", a="-0.0")
    assert not matches("a = 0.0", a="-0.0")
    assert matches("a > 1e308", a="NaN")
    assert matches("a > b", a="NaN", b="Infinity")
    assert matches("a = 9007199254740992.0", a="9007199254740993")


def test_names_are_those_asked_for_and_keywords_have_any_case() -> None:
    compiled = compile_sql("b > 1 aNd (A iS nOt NuLl oR NOT c) and 'b' = b and android iN ('x')")
    assert compiled.names == ("A", "android", "b", "c")
    assert compile_sql("TRUE").names == ()
    assert matches("TRUE")
    assert not matches("NULL")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "at the end: the expression ends where a property or a value is wanted"),
        ("a > 1 AND", "at the end"),
        ("a > > 1", "at character 5 ('> 1'): found '>' where a property or a value is wanted"),
        ("and = 1", "at character 1 ('and = 1'): found 'and'"),
        ("a = 1 b = 2", "at character 7 ('b = 2'): found 'b' behind a complete expression"),
        ("(a = 1", "the expression ends where"),
        ("a IS 5", "at character 6 ('5'): found '5' where NOT or NULL is wanted"),
        ("a in (5)", "at character 7 ('5)'): found '5' where a string in single quotes is wanted"),
        ("a LIKE 'x%'", "LIKE is not in RocketMQ's SQL92"),
        ("a = 'x", 'at character 5 ("\'x"): this string has no closing quote'),
        ('a = "x"', "strings stand in single quotes"),
        ("a != 1", "not equal is <>"),
        ("a /* b", "this comment has no end"),
        ("a + 1 = 2", "found '+' behind a complete expression"),
        ("a * 2 = 2", "'*' is no part of the language"),
        ("a i\u017f null", "at character 3"),
        ("a > 'x'", "at character 5 (\"'x'\"): only numbers and properties have an order"),
        ("NOT a > 1", "at character 5 ('a > 1'): a condition has no order; NOT takes the next"),
        ("a = NULL", "write IS NULL"),
        ("TRUE = 1", "at character 8 ('1'): this is not compared with TRUE or FALSE"),
        ("a BETWEEN 5 AND 2", "at character 11 ('5 AND 2'): BETWEEN has its higher bound first"),
        ("5 IN ('x')", "at character 1 (\"5 IN ('x')\"): IN asks of a property"),
        ("a = 1 AND 'x'", "at character 11 (\"'x'\"): this is a value where a condition is wanted"),
        ("5", "this is a value where a condition is wanted"),
        ("a > 9223372036854775808", "more than an integer of 64 bits holds"),
        ("a > 1e309", "more than a double holds"),
        ("a > 007", "found '0' behind a complete expression"),
        ("a > 0x3", "found 'x3' behind a complete expression"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(expression: str, said: str) -> None:
    assert said in refused(expression)


@given(
    st.lists(
        st.sampled_from([*"()+-=<>'\"/*,.05eLa \n", "NOT", " IN(", "IS NULL", "--"]) | st.text()
    )
)
def test_any_text_is_a_filter_or_refused(parts: list[str]) -> None:
    with contextlib.suppress(BadRequest):
        compile_sql("".join(parts)).matches({"a": "5"})


def test_length_and_depth_are_bounded() -> None:
    assert f"{MAX_EXPRESSION} is the most" in refused("a" * (MAX_EXPRESSION + 1))
    levels = MAX_DEPTH - 2
    assert matches("(" * levels + "a = 1" + ")" * levels, a="1")
    for deep in (
        "(" * 5_000 + "a = 1" + ")" * 5_000,
        "NOT " * 5_000 + "a",
        "- " * 5_000 + "a = 1",
        "a IS NULL" + " IS NULL" * 5_000,
        "a = b" + " = b" * 5_000,
        "(a = 1 OR " * 4_000 + "b = 1" + ")" * 4_000,
    ):
        assert f"nested more than {MAX_DEPTH} levels deep" in refused(deep)
    # Long is not deep.
    assert matches("a = 1 OR " * 5_000 + "a = 2", a="2")
    assert not matches("a = 1 AND " * 5_000 + "a = 2", a="1")


def test_the_deepest_filter_needs_few_calls() -> None:
    compiled = compile_sql("NOT " * (MAX_DEPTH - 4) + "(a = 1)")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_depth() + 2 * MAX_DEPTH + 50)
    try:
        assert compiled.matches({"a": "1"})
    finally:
        sys.setrecursionlimit(limit)


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def test_hostile_expressions_and_values_cost_little() -> None:
    began = time.process_time()
    for expression in ("-" * MAX_EXPRESSION, "(" * MAX_EXPRESSION, "'" * (MAX_EXPRESSION - 1),
                       "1" * MAX_EXPRESSION, "/*" * (MAX_EXPRESSION // 2)):  # fmt: skip
        refused(expression)
    compiled = [compile_sql(expression) for expression in ("a > 5", "a > 5.5", "a > 5000000000")]
    for value in ("1" * 32_000 + "x", "0" * 32_000 + "x", "1e" + "9" * 32_000, "1." * 16_000,
                  "0x" + "1" * 32_000, " " * 32_000, "." * 32_000):  # fmt: skip
        for one in compiled:
            one.matches({"a": value})
    # Milliseconds each, where backtracking would take minutes.
    assert time.process_time() - began < 10


def test_compiled_expressions_leave_the_collector_nothing_to_look_at() -> None:
    """Hundreds of the largest ones held a broker's loop up for a second at each full collection."""

    def compiled(number: int) -> SqlFilter:
        parts = [
            f"a{number} = 1", "b = 'x'", "c = d", "NOT e = 2.5", "f BETWEEN 1 AND 5", "g > h",
            "i NOT IN ('1', '2')", "j IS NULL", "-k IS NOT NULL", "l", "(m <> 3 OR n < 4L)",
        ]  # fmt: skip
        return compile_sql(" OR ".join(parts * 4))

    kept = [compiled(99)]
    gc.collect()
    before = len(gc.get_objects())
    kept += [compiled(number) for number in range(50)]
    # Tuples of what is not looked at leave at the collection that finds them so.
    gc.collect()
    gc.collect()
    # The expression itself, and what one keeps of its lists of values.
    assert len(gc.get_objects()) - before <= 50 * (1 + 4) + 20
    assert kept[-1].nodes > 100
