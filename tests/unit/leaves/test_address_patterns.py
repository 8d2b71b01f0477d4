"""Patterns of addresses: each form that a file of accounts may have, and what is no pattern."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.address_patterns import AddressPattern, address_patterns, parts_of

MATCHES = [
    ("*", ["10.1.2.3", "2001:db8::7", "::1"], ["", "no address"]),
    ("*.*.*.*", ["10.1.2.3", "2001:db8::7"], []),
    ("*:*:*:*:*:*:*:*", ["10.1.2.3", "2001:db8::7"], []),
    ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4", "10.1.2.30", "110.1.2.3"]),
    (" 10.1.2.3 ", ["10.1.2.3"], ["10.1.2.4"]),
    ("2001:db8::7", ["2001:DB8:0:0::7", "2001:db8::7%eth0"], ["2001:db8::8"]),
    ("10.1.2.3, 10.1.2.4", ["10.1.2.3", "10.1.2.4"], ["10.1.2.5"]),
    ("::1,10.1.2.4", ["::1", "10.1.2.4"], ["::2"]),
    ("10.1.2.{3,4}", ["10.1.2.3", "10.1.2.4"], ["10.1.2.34", "10.1.2.5"]),
    ("2001:db8::{7,8}", ["2001:db8::7", "2001:db8::8"], ["2001:db8::78"]),
    ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "10.1.20.1"]),
    ("10.1.*.*", ["10.1.0.0", "10.1.255.255"], ["10.2.0.0", "10.10.0.0"]),
    ("10.*.*.*", ["10.0.0.0"], ["11.0.0.0", "100.0.0.0"]),
    ("10.1.2.5-20", ["10.1.2.5", "10.1.2.20"], ["10.1.2.4", "10.1.2.21", "10.1.2.200"]),
    ("10.1.5-20.*", ["10.1.5.0", "10.1.20.255"], ["10.1.4.255", "10.1.21.0"]),
    ("10.1-2.3.4", ["10.1.3.4", "10.2.9.9"], ["10.3.3.4"]),  # what follows the range is free
    ("2001:db8:*", ["2001:db8::1", "2001:db8:ffff::"], ["2001:db9::1", "10.1.2.3"]),
    ("2001:db8::*", ["2001:db8::1"], ["2001:db8::1:1"]),
    ("2001:db8::5-20", ["2001:db8::5", "2001:db8::1f"], ["2001:db8::4", "2001:db8::21"]),
    ("2001:db8::5-20:*", ["2001:db8::5:0", "2001:db8::20:ffff"], ["2001:db8::4:1", "::5:0"]),
    ("", [], ["10.1.2.3", ""]),
]


@pytest.mark.parametrize(("text", "inside", "outside"), MATCHES, ids=lambda one: str(one))
def test_a_pattern_means_these_and_not_those(
    text: str, inside: list[str], outside: list[str]
) -> None:
    pattern = AddressPattern(text)
    assert [one for one in inside if not pattern.matches(one)] == []
    assert [one for one in outside if pattern.matches(one)] == []


def test_no_pattern_means_no_address() -> None:
    assert not AddressPattern(None).matches("10.1.2.3")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.1.2", "'10.1.2' is no IP address"),
        ("10.1.2.256", "'10.1.2.256' is no IP address"),
        ("010.1.2.3", "'010.1.2.3' is no IP address"),
        ("10.1.2.3,", "'' is no IP address"),
        ("10.1.2.3,10.1.3.*", "'10.1.3.*' is no IP address"),
        ("host.example", "'host.example' is no IP address"),
        ("10.0.0.0/8", "'10.0.0.0/8' is no IP address; a network is written as a range: 10.*.*.*,"),
        ("2001:db8::/32", "10.1.2.5-20, or 2001:db8:* of IPv6"),
        ("10.1.2.3, 10.1.2.5-20", "'10.1.2.5-20' is no IP address; a range stands alone, in no li"),
        ("10.1.2.{3,4", "'10.1.2.{3' is no IP address"),
        ("10.1.2.{}", "'10.1.2.' is no IP address"),
        ("10.1.2{3,4}", "braces stand for the last part, as 10.1.2.{3,4}"),
        ("{3,4}", "braces stand for the last part, as 10.1.2.{3,4}"),
        ("10.*", "has 2 parts, not 4"),
        ("10..1.2.*", "has 5 parts, not 4"),
        ("-", "has 1 parts, not 4"),
        ("*.1.2.3", "the first part must be a number"),
        ("1-2.1.2.3", "the first part must be a number"),
        ("10.1.2.*5", "'*5' is no range such as 5-20"),
        ("10.1.2.20-5", "20 is above 5"),
        ("10.1.2.5-256", "'256' is no number up to 255"),
        ("10.1.2.5-", "'' is no number up to 255"),
        ("10.1.2.-5", "'' is no number up to 255"),
        ("10.300.2.*", "'300' is no number up to 255"),
        ("1_0.1.2.*", "'1_0' is no number up to 255"),
        ("10.\u0663.2.*", "is no number up to 255"),
        ("2001:db8:*:5", "has 4 parts, not 8"),
        ("2001:db8::5-10000", "'10000' is no number up to ffff"),
        ("0x1:2:*", "'0x1' is no number up to ffff"),
        ("1::2::*", "'' is no number up to ffff"),
        ("1:2:3:4:5:6:7:8:*", "has 9 parts, not 8"),
    ],
)
def test_what_is_no_pattern_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        AddressPattern(text)
    assert why in str(raised.value)


@pytest.mark.parametrize(
    ("text", "means", "matched"),
    [
        ("10.*.1.1", "10.*.*.*", "10.200.7.7"),
        ("10.1.*.1", "10.1.*.*", "10.1.7.7"),
        ("10.1-2.3.4", "10.1-2.*.*", "10.2.9.9"),
        ("10.1-2.3-4.*", "10.1-2.*.*", "10.2.9.9"),
        ("10.*.*.*/8", "10.*.*.*", "10.2.9.9"),
        ("2001:db8::5-20:7", "2001:db8:0:0:0:0:5-20:*", "2001:db8::6:8"),
        ("10.1.*.*", "", "10.1.7.7"),
        ("10.1.2.5-20", "", "10.1.2.7"),
        ("2001:db8:*", "", "2001:db8::7"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("*", "", "10.1.2.3"),
    ],
)
def test_a_pattern_that_means_more_than_it_reads_says_what_it_means(
    text: str, means: str, matched: str
) -> None:
    pattern = AddressPattern(text)
    assert pattern.means_more == means
    assert pattern.matches(matched)
    for one in (means,) if means else ():
        assert AddressPattern(one).means_more == ""
        assert AddressPattern(one).matches(matched)


V4 = st.tuples(*[st.integers(0, 255)] * 4)
RANGE = st.tuples(st.integers(0, 255), st.integers(0, 255)).map(sorted)


def text_of(parts: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in parts)


@given(V4, V4, st.integers(1, 3), RANGE)
def test_a_range_is_a_plain_comparison_of_numbers(
    wanted: tuple[int, ...], asked: tuple[int, ...], at: int, bounds: list[int]
) -> None:
    low, high = bounds
    pieces = [*map(str, wanted[:at]), f"{low}-{high}", *["*"] * (3 - at)]
    pattern = AddressPattern(".".join(pieces))
    # Half of the addresses that are asked for share the head.
    for address in (asked, (*wanted[:at], *asked[at:])):
        expected = address[:at] == wanted[:at] and low <= address[at] <= high
        assert pattern.matches(text_of(address)) is expected


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_an_address_of_ipv6_is_one_however_it_is_written(wanted: int, asked: int) -> None:
    address = ipaddress.IPv6Address(wanted)
    pattern = AddressPattern(address.compressed)
    assert pattern.matches(address.exploded.upper())
    assert pattern.matches(str(ipaddress.IPv6Address(asked))) is (asked == wanted)


@given(st.text(alphabet="0123456789abcdf.:*-{}, %", max_size=24))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    try:
        pattern = AddressPattern(text)
    except ValueError:
        return
    assert pattern.matches("10.1.2.3") in (True, False)


def test_parts_of_an_address() -> None:
    assert parts_of("10.1.2.3") == (10, 1, 2, 3)
    assert parts_of("2001:db8::7%eth0") == (0x2001, 0xDB8, 0, 0, 0, 0, 0, 7)
    assert parts_of("nothing") is None


def test_a_list_is_separated_by_semicolons() -> None:
    found = address_patterns(" 10.1.2.{3,4} ;; 10.1.3.3,10.1.3.4;2001:db8:*;")
    assert [one.text for one in found] == ["10.1.2.{3,4}", "10.1.3.3,10.1.3.4", "2001:db8:*"]
    assert address_patterns(" ; ") == ()
    with pytest.raises(ValueError, match="'here' is no IP address"):
        address_patterns("10.1.2.3;here")
