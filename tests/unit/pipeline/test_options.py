"""Options are typed, and what nobody knows is refused by name."""

import pytest

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.option_map import OptionMap

KNOWN = ("nameServer", "splitBytes", "mode", "topic", "secretKey", "startTimestamp", "checkCrc")


def options(**given: str) -> OptionMap:
    return OptionMap(given, KNOWN, secrets=["secretKey"])


def test_names_count_without_their_case() -> None:
    assert options(SPLITBYTES="5").size("splitBytes", 1) == 5
    assert "topic" not in options()
    assert options(Topic="a").given(KNOWN) == ["topic"]


def test_unknown_options_are_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(OptionError, match="unknown option 'splitbyte'; did you mean 'splitBytes'"):
        options(splitbyte="1")
    with pytest.raises(OptionError, match="known are nameServer"):
        options(zzzzzz="1")


def test_aliases_stand_for_their_option_but_not_against_it() -> None:
    aliases = {"rocketmq.namesrv.addr": "nameServer"}
    found = OptionMap({"rocketmq.namesrv.addr": "h:1"}, KNOWN, aliases=aliases)
    assert found.required("nameServer") == "h:1"
    both = {"rocketmq.namesrv.addr": "h:1", "nameserver": "h:2"}
    with pytest.raises(OptionError, match="nameServer is given twice"):
        OptionMap(both, KNOWN, aliases=aliases)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("128m", 128 << 20), ("128 MB", 128 << 20), ("1GiB", 1 << 30), ("7k", 7168)],
)
def test_sizes_have_units(text: str, value: int) -> None:
    assert options(splitBytes=text).size("splitBytes", 1, minimum=0) == value


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5g", "12 parsecs"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="option splitBytes"):
        options(splitBytes=text).size("splitBytes", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1700000000123", 1_700_000_000_123), ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
     ("2023-11-14 22:13:20", 1_700_000_000_000), ("2023-11-14T23:13:20+01:00", 1_700_000_000_000)],
)  # fmt: skip
def test_times_are_milliseconds_or_iso(text: str, value: int) -> None:
    assert options(startTimestamp=text).timestamp_ms("startTimestamp") == value


def test_what_is_no_time_is_refused() -> None:
    for text in ("yesterday", "", "-5"):
        with pytest.raises(OptionError, match="option startTimestamp"):
            options(startTimestamp=text).timestamp_ms("startTimestamp")


def test_booleans_numbers_choices_and_lists() -> None:
    assert options(checkCrc=" TRUE ").boolean("checkCrc", False)
    assert not options(checkCrc="off").boolean("checkCrc", True)
    assert options().boolean("checkCrc", True)
    with pytest.raises(OptionError, match="'maybe' is neither true nor false"):
        options(checkCrc="maybe").boolean("checkCrc", False)
    assert options(topic="-3").integer("topic", None, minimum=-5) == -3
    with pytest.raises(OptionError, match="less than 0"):
        options(topic="-3").integer("topic", None)
    with pytest.raises(OptionError, match="no whole number"):
        options(topic="3.5").integer("topic", None)
    assert options(mode="FailFast").choice("mode", ("permissive", "failfast"), "permissive") == (
        "failfast"
    )
    with pytest.raises(OptionError, match="did you mean 'failfast'"):
        options(mode="failfats").choice("mode", ("permissive", "failfast"), "permissive")
    assert options(topic=" a, b").names("topic") == ("a", "b")
    assert options().names("topic") is None
    with pytest.raises(OptionError, match="empty place"):
        options(topic="a,,b").names("topic")


def test_secrets_are_in_no_error_and_what_is_required_is_missed() -> None:
    assert "hidden" not in str(options(secretKey="hidden").wrong("secretKey", "is bad"))
    for given in ({}, {"topic": "  "}):
        with pytest.raises(OptionError, match="option topic is required"):
            options(**given).required("topic")
