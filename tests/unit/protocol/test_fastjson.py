"""fastjson's dialect both ways, within bounds; nothing but JsonError leaves the reader."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.frames import fastjson
from aerobee.protocol.frames.fastjson import (
    MAX_DEPTH,
    JsonError,
    dumps,
    dumps_in_steps,
    loads,
    text_of,
)
from tests.inline_loop import drive

characters = st.characters(exclude_categories=["Cs"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(characters),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(characters), inner, max_size=4)
    ),
    max_leaves=12,
)


def without_nulls(value: Any) -> Any:
    """Returns the rest of a value when null members are dropped, as fastjson does."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_a_value_survives_and_is_standard_json(value: Any) -> None:
    data = dumps(value)
    assert loads(data) == without_nulls(value)
    assert json.loads(data) == without_nulls(value)


@given(values)
def test_standard_json_is_read_alike_by_both_readers(value: Any) -> None:
    data = json.dumps(value, ensure_ascii=False)
    # A comment sends it through the reader of the dialect.
    assert loads(data) == loads("/**/" + data) == value


tables = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.text(st.sampled_from('{,:0-9"\\\0é'), max_size=8),
    lambda inner: (
        st.dictionaries(st.integers(-(10**20), 10**20), inner, max_size=4)
        | st.dictionaries(st.text(st.sampled_from("{,:05a@"), max_size=4), inner, max_size=4)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


def with_bare_keys(value: Any) -> str:
    """Prints as fastjson does: integer keys without quotes."""
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(
                f"{key if isinstance(key, int) else json.dumps(key)}:{with_bare_keys(item)}"
                for key, item in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(with_bare_keys, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def outcome(data: bytes) -> Any:
    try:
        return loads(data)
    except JsonError:
        return JsonError


@given(tables)
def test_bare_numbers_as_keys_are_read_alike_by_both_readers(value: Any) -> None:
    data = with_bare_keys(value).encode()
    # A comment sends it through the reader of the dialect alone.
    assert outcome(data) == outcome(b"/**/" + data)


@pytest.mark.parametrize(
    "text",
    [
        '{00:1}', '{-0:1}', '{01:1,2:3}', '{1:2,"1":3}', '{"1":3,1:2}', '{1:{2:"a{3:b,4:"}}',
        '{12345678901234567890:1}', '{"a":1:2}', '{1:2:3}', "{1:1//2:\n}", "{'a,1:':2,3:4}",
        '{1 :2}', '{ 1:2}', '{1:2}}', '{1:2', '{1:"', '{1.5:2}', '{1L:2}', '{1:1.5,2:1e3}',
    ],
)  # fmt: skip
def test_corners_of_bare_keys_are_read_alike_by_both_readers(text: str) -> None:
    assert outcome(text.encode()) == outcome(b"/**/" + text.encode())


def test_a_table_of_offsets_goes_through_the_native_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found at 100,000 offsets: a start read them for 14 s."""
    monkeypatch.setattr(fastjson, "_read_dialect", None)
    text = b'{\n\t"offsetTable":{\n\t\t"T@g":{0:5,10:6\n\t\t},\n\t\t"U@g":{}\n\t}\n}'
    assert loads(text) == {"offsetTable": {"T@g": {"0": 5, "10": 6}, "U@g": {}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",-1:"b"}', {"0": "a", "-1": "b"}),
        ('{"k":{{"b":1,"a":"x"}:5}}', {"k": {'{"a":"x","b":1}': 5}}),
        ("{[1,2]:3}", {"[1,2]": 3}),
        ("{'a':'it\\'s',}", {"a": "it's"}),
        ("{a_b$1:true,,c.d:null}", {"a_b$1": True, "c.d": None}),
        ("// line\n[1,/* two */2,]", [1, 2]),
        ('["\\x41\\u0042\\v\\0\\ud83d\\ude00"]', ["AB\v\0😀"]),
        ('{"a":"raw\x01control\ttab"}', {"a": "raw\x01control\ttab"}),
        ("[12L,7S,1B,-0]", [12, 7, 1, 0]),
        ("[1.5e3,.5]".replace(",.5", ""), [1500.0]),
        ('{"$ref":"$.a"}', {"$ref": "$.a"}),
        ('{"@type":"java.lang.Runtime","a":1,}', {"@type": "java.lang.Runtime", "a": 1}),
        ('{a:1,"a":2}', {"a": 2}),
        ("\ufeff{a:undefined}", {"a": None}),
        (" \t\n[ ] ", []),
    ],
)
def test_the_dialect_is_read(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "{",
        "[1",
        '{"a"}',
        '{"a":}',
        '{"a":1 "b":2}',
        "[1 2]",
        "{}x",
        "{} {}",
        '"open',
        "'open",
        '"\\q"',
        '"\\ud800"',
        '"\\udc00\\ud800"',
        "NaN",
        "Infinity",
        "-Infinity",
        "[1e999]",
        "{a:1e999}",
        "{a:-}",
        "{a:1x}",
        "{a:0x10}",
        "9" * 5000,
        "{a:9223372036854775808}",
        "[9223372036854775808]",
        "{a:-9223372036854775809}",
        "new Date(1)",
        "/* open",
        "{/}",
        "[" * 100_000,
        "{a:" * 100_000,
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "{a:" * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        "{" * 50 + "1:1",
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(JsonError):
        loads(text)


def test_invalid_utf8_is_refused() -> None:
    for data in (b'"\xff"', b"{a:'\xc3'}", b"\xfe\xff"):
        with pytest.raises(JsonError):
            loads(data)


def test_the_deepest_allowed_nesting_is_read() -> None:
    for text in ("[" * MAX_DEPTH + "]" * MAX_DEPTH, "{a:" * MAX_DEPTH + "1" + "}" * MAX_DEPTH):
        assert loads(text) is not None


def test_values_are_counted_in_both_readers() -> None:
    assert loads("[1,2,3]", max_values=4) == [1, 2, 3]
    assert loads("[1,2,3,]", max_values=4) == [1, 2, 3]
    for text in ("[1,2,3]", "[1,2,3,]", "{a:{b:{}}}", "[,,,]", "{,,,}"):
        with pytest.raises(JsonError):
            loads(text, max_values=2)


def test_what_only_our_own_reader_reads_may_have_fewer_values() -> None:
    standard, dialect = "[1,2,3,4,5,6]", "[1,2,3,4,5,6,]"
    assert loads(standard, max_values=8, dialect_values=4) == [1, 2, 3, 4, 5, 6]
    assert loads(dialect, max_values=8, dialect_values=8) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(JsonError, match="not standard JSON"):
        loads(dialect, max_values=8, dialect_values=4)


def test_escapes_count_where_only_our_own_reader_reads_them() -> None:
    text = "'" + "\\n" * 80 + "'"
    assert loads(text, dialect_values=11) == "\n" * 80
    with pytest.raises(JsonError):
        loads(text, dialect_values=10)


def test_a_document_of_quotes_is_not_cut_into_as_many_parts() -> None:
    data = b'"' * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(JsonError):
            loads(data, max_values=1_000)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_json_or_refused(data: bytes) -> None:
    try:
        loads(data)
    except JsonError:
        return


@given(st.text(st.sampled_from("{}[]:,'\"\\/*01.eE-a u\n"), max_size=40))
def test_arbitrary_punctuation_is_json_or_refused(text: str) -> None:
    try:
        value = loads(text)
    except JsonError:
        return
    assert loads(dumps(value)) == without_nulls(value)
    assert drive(dumps_in_steps(value)) == dumps(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": None, "c": [None]}, '{"b":1,"c":[null]}'),
        ({1: "b", 0: "a", 10: "c"}, '{"0":"a","1":"b","10":"c"}'),
        ({MessageQueue("T", "b", 1): 5}, '{{"brokerName":"b","queueId":1,"topic":"T"}:5}'),
        ([MessageQueue("T", "b", 1)], '[{"brokerName":"b","queueId":1,"topic":"T"}]'),
        ('a/b"\\\n\x01\x7f\u2028ü', '"a/b\\"\\\\\\n\\u0001\\u007F\\u2028ü"'),
        (frozenset({"b", "a"}), '["a","b"]'),
        (b"\x01\x02", '"AQI="'),
        ([True, False], "[true,false]"),
        ([math.nan, math.inf], "[null,null]"),
    ],
)
def test_values_are_written_as_fastjson_writes_them(value: Any, text: str) -> None:
    assert dumps(value).decode() == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (0.45, "0.45"),
        (1e10, "1.0E10"),
        (1.5e-7, "1.5E-7"),
        (-123456789.5, "-1.234567895E8"),
        (9999999.0, "9999999.0"),
        (0.001, "0.001"),
        (1e7, "1.0E7"),
    ],
)
def test_doubles_are_javas(value: float, text: str) -> None:
    assert dumps(value).decode() == text
    assert float(text) == value


def test_texts_of_values() -> None:
    assert text_of("a") == "a"
    assert text_of(True) == "true"
    assert text_of(None) == ""
    assert text_of(5) == "5"
    assert text_of({"a": [1]}) == '{"a":[1]}'


def test_what_has_no_json_form_is_a_type_error() -> None:
    for value in (object(), {object(): 1}):
        with pytest.raises(TypeError):
            dumps(value)


def test_a_key_as_object_or_as_text_is_the_same_queue() -> None:
    as_object = loads('{{"topic":"T","queueId":1,"brokerName":"b"}:5}')
    as_text = loads('{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":5}')
    assert as_object == as_text
    [key] = as_object
    assert MessageQueue.from_key(key) == MessageQueue("T", "b", 1)


@pytest.mark.parametrize(
    "text",
    ["{'a':'" + "\\n" * 100_000 + "'}", '{a:"' + "\\t" * 100_000 + '"}', "//\n" * 70_000 + "{}"],
    ids=["single quotes", "double quotes", "comments"],
)
def test_escapes_and_comments_cost_few_bytes_on_the_way(text: str) -> None:
    """A repeated group of a regular expression keeps its places, unless it is possessive."""
    tracemalloc.start()
    try:
        loads(text)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 10 * len(text)
