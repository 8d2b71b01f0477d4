"""The nearest known name."""

from __future__ import annotations

from aerobee.nearest_name import nearest_name


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    known = ["flushDiskType", "flushInterval", "brokerName"]
    assert nearest_name("FLUSHDISCTYPE", known) == "flushDiskType"
    assert nearest_name("brokername", known) == "brokerName"


def test_what_resembles_nothing_has_no_nearest_name() -> None:
    assert nearest_name("zzzz", ["brokerName"]) is None
    assert nearest_name("brokerName", []) is None
