"""Properties, batches, hashes, names and ids."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol import names
from aerobee.protocol.checksum import body_crc, crc32c
from aerobee.protocol.codes import LANGUAGES, RequestCode, ResponseCode, request_name, version_name
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import (
    parse_tag_expression,
    tag_codes,
    tag_codes_in_steps,
)
from aerobee.protocol.hashing import java_hash, java_hash_with_prefix, tag_code
from aerobee.protocol.message.batch import BatchItem, decode_batch, encode_batch, join_properties
from aerobee.protocol.message.ids import UniqueIdMaker, offset_msg_id, parse_offset_msg_id
from aerobee.protocol.message.properties import (
    chosen_properties,
    decode_properties,
    encode_properties,
    index_keys,
    is_clean_text,
    property_marks,
    tags_and_keys,
)
from aerobee.protocol.message.record_layout import pack_host


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b\x02\x02c\x01d", {"a": "b", "c": "d"}),
        ("a\x01b\x01c", {"a": "b\x01c"}),
        ("a\x01\x02c\x01d", {"c": "d"}),  # empty value
        ("\x01v\x02c\x01d", {"c": "d"}),  # empty name
        ("ab\x02c\x01d", {"c": "d"}),  # no separator
        ("a\x011\x02a\x012", {"a": "2"}),  # the last counts
    ],
)
def test_properties_are_read_as_readers_do(text: str, properties: dict[str, str]) -> None:
    assert decode_properties(text) == properties
    assert decode_properties(text.encode()) == properties


clean = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)


@given(st.dictionaries(clean, clean, max_size=6))
def test_properties_survive_their_text(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text + "\x02") == properties


def test_texts_with_separators_are_not_clean() -> None:
    assert is_clean_text("a b")
    assert not is_clean_text("a\x01b")
    assert not is_clean_text("\x02")


def test_index_keys_are_unique_key_then_words() -> None:
    assert index_keys({}) == ()
    assert index_keys({"UNIQ_KEY": "u"}) == ("u",)
    assert index_keys({"KEYS": "a  b a "}) == ("a", "b", "a")
    assert index_keys({"KEYS": "a", "UNIQ_KEY": "u"}) == ("u", "a")


@given(
    st.lists(st.builds(BatchItem, st.integers(-9, 9), st.binary(max_size=50), st.just(b"a\x01b")))
)
def test_a_batch_survives(items: list[BatchItem]) -> None:
    data = encode_batch(items)
    if items:
        assert decode_batch(data) == items
    else:
        with pytest.raises(BadRequest, match="no message"):
            decode_batch(data)


def test_each_cut_batch_is_refused_whole() -> None:
    data = encode_batch([BatchItem(0, b"one", b"a\x01b"), BatchItem(0, b"two", b"")])
    first = 22 + 3 + 3
    for length in range(1, len(data)):
        if length != first:
            with pytest.raises(BadRequest) as caught:
                decode_batch(data[:length])
            assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("body_length", "properties_length"), [(-1, 0), (9, 0), (2**31 - 1, 0), (0, -1)]
)
def test_lengths_of_a_batch_are_bounded(body_length: int, properties_length: int) -> None:
    data = struct.pack(">iiiiih", 22, 0, 0, 0, body_length, properties_length)
    with pytest.raises(BadRequest, match="message 0"):
        decode_batch(data)


def test_batch_properties_must_be_utf8_and_the_size_word_is_not_trusted() -> None:
    with pytest.raises(BadRequest, match="UTF-8"):
        decode_batch(encode_batch([BatchItem(0, b"", b"\xff")]))
    data = b"\x7f\xff\xff\xff" + encode_batch([BatchItem(0, b"x", b"")])[4:]
    assert decode_batch(data) == [BatchItem(0, b"x", b"")]
    with pytest.raises(ValueError, match="32767"):
        encode_batch([BatchItem(0, b"", bytes(32768))])


def test_batch_properties_are_joined_with_one_separator() -> None:
    assert join_properties(b"a\x01b", b"c\x01d") == b"a\x01b\x02c\x01d"
    assert join_properties(b"a\x01b\x02", b"c\x01d") == b"a\x01b\x02c\x01d"
    assert join_properties(b"", b"c\x01d") == b"c\x01d"
    assert join_properties(b"a\x01b", b"") == b"a\x01b"


def plain_hash(text: str) -> int:
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(encoded), 2):
        value = (31 * value + int.from_bytes(encoded[position : position + 2], "big")) % 2**32
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("A", 65), ("TagA", 2598919), ("中文", 646394), ("TagA||TagB||TagC", -136118632)],
)
def test_java_hashes_of_the_spec(text: str, value: int) -> None:
    assert java_hash(text) == value
    assert tag_code(text) == value


@given(st.text(max_size=60), st.text(max_size=60))
def test_java_hash_is_the_plain_sum(prefix: str, text: str) -> None:
    assert java_hash(text) == plain_hash(text)
    assert java_hash_with_prefix(java_hash(prefix), text) == plain_hash(prefix + text)


@pytest.mark.parametrize("length", [511, 512, 513, 1024, 5000, 32767])
def test_java_hash_of_long_texts(length: int) -> None:
    text = "".join(chr(33 + i * 7 % 200) for i in range(length))
    assert java_hash(text) == plain_hash(text)


def test_checksums() -> None:
    assert body_crc(b"") == 0
    assert body_crc(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_no_expression_is_everything(expression: str | None) -> None:
    subscription = parse_tag_expression("T", expression, 5)
    assert (len(subscription.tags), len(subscription.codes), subscription.version) == (0, 0, 5)
    assert subscription.matches(123)
    assert tag_codes(expression) is None


def test_tags_are_trimmed_and_blank_ones_dropped() -> None:
    subscription = parse_tag_expression("T", " A ||\tB|| ||A")
    assert subscription.tags == {"A", "B"}
    assert subscription.codes == {65, 66}
    assert subscription.matches(65)
    assert not subscription.matches(67)


def test_blank_tags_match_nothing_and_bare_separators_are_refused() -> None:
    subscription = parse_tag_expression("T", "  ")
    assert not any(map(subscription.matches, (0, 65, -1)))
    with pytest.raises(BadRequest) as caught:
        parse_tag_expression("T", "||")
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize(
    "expression",
    ["*", "A", " A ||\tB|| ||A", "  ", "||".join(f"T{number}" for number in range(2_500)), "ä||ö"],
)
def test_codes_made_in_steps_are_the_same(expression: str) -> None:
    made: list[frozenset[int] | None] = []

    def run() -> Iterator[None]:
        made.append((yield from tag_codes_in_steps(expression)))

    count = len(list(run()))
    assert made == [tag_codes(expression)]
    assert count == (0 if expression == "*" else -(-(expression.count("||") + 1) // 1_000))


def test_bare_separators_are_refused_in_steps_too() -> None:
    with pytest.raises(BadRequest) as caught:
        next(tag_codes_in_steps("||" * 3_000))
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b-c_D9", "x" * 127])
def test_good_topic_names(name: str) -> None:
    assert names.check_topic_name(name) == name
    assert names.is_valid_topic_name(name)


@pytest.mark.parametrize(
    "name", [None, "", "  ", "../x", "a/b", "a.b", "a b", "ä", "x" * 128, "a\n", "a\0", "٣"]
)
def test_bad_topic_names_are_refused(name: str | None) -> None:
    with pytest.raises(BadRequest, match="topic") as caught:
        names.check_topic_name(name)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert name is None or not names.is_valid_topic_name(name)


def test_group_names_may_be_longer() -> None:
    assert names.check_group_name("g" * 255)
    assert not names.is_valid_group_name("g" * 256)
    with pytest.raises(BadRequest, match="group"):
        names.check_group_name("a@b")


def test_system_topics_and_derived_names() -> None:
    assert names.is_system_topic("rmq_sys_x")
    assert names.is_system_topic("TBW102")
    assert not names.is_system_topic("T")
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"


def test_offset_ids_are_those_of_the_spec() -> None:
    text = "7F00000100009FCF0000000000000095"
    assert offset_msg_id(pack_host("127.0.0.1", 40911), 149) == text
    assert parse_offset_msg_id(text) == ("127.0.0.1", 40911, 149)
    assert parse_offset_msg_id(text.lower()) == ("127.0.0.1", 40911, 149)
    letters = "0AFF000100002A9F0000000000ABCDEF"
    assert offset_msg_id(pack_host("10.255.0.1", 10911), 0xABCDEF) == letters


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F",
        "7F00000100009FCF000000000000009",
        "Z" * 32,
        "F" * 32,
        "7F0000010000_FCF0000000000000095",
    ],
)
def test_nonsense_is_no_offset_id(text: str) -> None:
    with pytest.raises(BadRequest, match="message id"):
        parse_offset_msg_id(text)


def test_unique_ids_differ_and_turn_with_the_month() -> None:
    now = 1_700_000_000_000
    maker = UniqueIdMaker(bytes([192, 0, 2, 7]), 70000, 5, lambda: now)
    first, second = maker.next_id(), maker.next_id()
    assert (len(first), first[:8]) == (32, "C0000207")
    assert first[:28] == second[:28]
    assert first != second
    now += 40 * 86_400_000
    assert int(maker.next_id()[20:28], 16) < 31 * 86_400_000
    assert len(UniqueIdMaker(bytes(16), 1, 1, lambda: now).next_id()) == 56
    assert len({maker.next_id() for _ in range(65536)}) == 65536


def test_names_of_codes_languages_and_versions() -> None:
    assert request_name(RequestCode.SEND_MESSAGE_V2) == "send_message_v2"
    assert request_name(31337) == "unknown"
    assert LANGUAGES[12] == "RUST"
    assert version_name(409) == "V4_9_8"
    assert version_name(408) == "V4_9_8_SNAPSHOT"
    assert version_name(479) == "V5_3_3"
    assert version_name(700) == "HIGHER_VERSION"


def test_nothing_is_remembered_of_long_properties_and_tags() -> None:
    """They may have 32 KiB each, of 16,000 words, and thousands of the short ones are kept."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20):
            words = " ".join(f"{number:x}{word:x}" for word in range(4_000))
            encoded = f"TAGS\x01{number}{'t' * 8_000}\x02KEYS\x01{words}\x02".encode()
            tags, keys = tags_and_keys(encoded)
            assert (len(keys), keys[0]) == (4_000, f"{number:x}0")
            tag_code(tags)
        assert tracemalloc.get_traced_memory()[0] - before < 500_000
    finally:
        tracemalloc.stop()


def test_chosen_properties_are_those_that_all_of_them_have() -> None:
    chance = random.Random(7)
    names = ["a", "ab", "b", "TAGS", "\u00fc"]
    pieces = [*names, "\x01", "\x01", "\x02", "\x02", "x", "1", ""]
    for _ in range(3_000):
        text = "".join(chance.choices(pieces, k=chance.randint(0, 14)))
        every = decode_properties(text)
        for some in (names[:1], names):
            chosen = chosen_properties(text.encode(), property_marks(some))
            assert {name: chosen.get(name) for name in some} == {
                name: every.get(name) for name in some
            }, text


def test_of_many_names_all_properties_are_read() -> None:
    names = [f"n{number}" for number in range(512)]
    text = "\x02".join(f"{name}\x01{name}v" for name in names).encode()
    chosen = chosen_properties(text, property_marks(names))
    assert dict(chosen) == {name: f"{name}v" for name in names}


def test_bytes_that_are_no_text_are_replaced_in_chosen_properties() -> None:
    chosen = chosen_properties(b"a\x01\xff\x02b\x01x", property_marks(["a", "b"]))
    assert dict(chosen) == {"a": "\ufffd", "b": "x"}
