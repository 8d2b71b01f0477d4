"""Claims about the names of index files: their order is the order of the files."""

import pytest

from aerobee.store.index.index_service import IndexNames, is_index_name
from tests.unit.store.support import ManualClock


def test_names_grow_whatever_the_clock_does() -> None:
    clock = ManualClock()
    names = IndexNames(clock)
    given = []
    for step_ms in (0, 1, 0, 0, -86_400_000, 60_000, -1_600_000_000_000, 4_000_000_000_000, -1):
        clock.time_ms += step_ms
        given.append(names.next())
    assert given == sorted(set(given))
    assert all(map(is_index_name, given))


@pytest.mark.parametrize("there", ["99999999000000000", "20231399000000000", "20301231235959999"])
def test_a_name_is_above_those_that_were_there(there: str) -> None:
    names = IndexNames(ManualClock())
    names.seen(there)
    assert names.next() > there
    assert is_index_name(names.next())
