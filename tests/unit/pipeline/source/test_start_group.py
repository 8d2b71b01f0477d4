"""The group that keeps where a stream began has a name that every broker takes."""

from aerobee.pipeline.source.initial_offsets import start_group
from aerobee.protocol.names import START_GROUP_SUFFIX, check_group_name


def test_a_group_s_start_has_its_name_and_the_suffix() -> None:
    assert start_group("reports") == "reports-start"
    assert start_group("G" * 249) == "G" * 249 + "-start"


def test_a_long_name_is_cut_to_one_that_is_a_group_s_and_nobody_else_s() -> None:
    names = {start_group("G" * 250 + last) for last in ("A", "B", "AAAAA", "AAAAB")}
    assert len(names) == 4
    for name in names:
        assert check_group_name(name).endswith(START_GROUP_SUFFIX)
