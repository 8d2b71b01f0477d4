"""Java properties, read as Java reads them."""

import pytest

from aerobee.config.loading.properties_file import PropertiesSyntaxError, parse_properties


def pairs(text: str | bytes) -> list[tuple[str, str]]:
    data = text if isinstance(text, bytes) else text.encode("iso-8859-1")
    return [(entry.key, entry.value) for entry in parse_properties(data).entries]


@pytest.mark.parametrize(
    "line",
    ["brokerId=1", "brokerId = 1", "brokerId:1", "brokerId : 1", "brokerId 1", "  brokerId\t1"],
)
def test_equals_colon_and_blank_separate(line: str) -> None:
    assert pairs(line) == [("brokerId", "1")]


def test_only_the_first_separator_counts() -> None:
    assert pairs("a=b=c:d") == [("a", "b=c:d")]
    assert pairs("a = = b") == [("a", "= b")]


def test_comments_and_blank_lines_are_skipped() -> None:
    assert pairs("# one\n! two\n\n   \n  # three\na=1\n") == [("a", "1")]


def test_comment_sign_inside_a_value_is_text() -> None:
    assert pairs("a=1 # not a comment") == [("a", "1 # not a comment")]


def test_key_without_value_is_empty() -> None:
    assert pairs("namesrvAddr\nbrokerIP1=") == [("namesrvAddr", ""), ("brokerIP1", "")]


def test_backslash_joins_lines_and_drops_leading_blanks() -> None:
    assert pairs("namesrvAddr=a:9876;\\\n    b:9876\nx=1") == [
        ("namesrvAddr", "a:9876;b:9876"),
        ("x", "1"),
    ]


def test_two_backslashes_are_one_and_do_not_join() -> None:
    assert pairs("path=C:\\\\\nx=1") == [("path", "C:\\"), ("x", "1")]


def test_comment_sign_does_not_start_a_comment_on_a_continued_line() -> None:
    assert pairs("a=1\\\n#2\nb=3") == [("a", "1#2"), ("b", "3")]


def test_backslash_at_the_end_of_the_file_is_dropped() -> None:
    assert pairs("a=1\\") == [("a", "1")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end_counts(end: str) -> None:
    assert pairs(f"a=1{end}b=2{end}") == [("a", "1"), ("b", "2")]


def test_escapes_are_java_s() -> None:
    assert pairs(r"a=\t\n\r\f\q\u0041") == [("a", "\t\n\r\fqA")]
    assert pairs(r"my\ key\=x=1") == [("my key=x", "1")]


def test_escaped_surrogate_pair_is_one_character() -> None:
    assert pairs(r"a=\ud83d\ude00") == [("a", "\U0001f600")]


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\u12gz", r"a=\ud83d"])
def test_broken_unicode_escape_names_the_line(text: str) -> None:
    with pytest.raises(PropertiesSyntaxError) as caught:
        parse_properties(f"x=1\n{text}\n".encode())
    assert caught.value.line == 2


def test_line_is_where_the_key_stands() -> None:
    entries = parse_properties(b"# c\na=1\\\n2\n\nb=3\n").entries
    assert [(entry.key, entry.line) for entry in entries] == [("a", 2), ("b", 5)]


def test_trailing_blanks_are_kept_for_the_loader_to_report() -> None:
    assert pairs("a=1  \t") == [("a", "1  \t")]


def test_utf8_is_read_as_such_and_latin1_otherwise() -> None:
    utf8 = parse_properties("brokerName=蜂".encode())
    latin = parse_properties("brokerName=Bär".encode("iso-8859-1"))
    assert (utf8.entries[0].value, utf8.encoding) == ("蜂", "UTF-8")
    assert (latin.entries[0].value, latin.encoding) == ("Bär", "ISO-8859-1")


def test_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert parse_properties("\ufeffbrokerId=1".encode()).entries[0].key == "brokerId"
