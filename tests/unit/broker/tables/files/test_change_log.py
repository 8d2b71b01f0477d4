"""A log of changes: appended changes are read, a torn end is cut, damage is kept aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.tables.files.change_log import ChangeLog


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "x.json"


def lines(table: Path) -> list[bytes]:
    return list(ChangeLog(table).read())


def test_lines_are_read_in_order_those_of_the_log_before_first(table: Path) -> None:
    log = ChangeLog(table)
    for number in range(3):
        log.append(b"a%d" % number)
    log.start_over()
    log.append(b"b")
    assert lines(table) == [b"a0", b"a1", b"a2", b"b"]
    log.start_over()
    assert lines(table) == [b"b"]


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_torn_last_line_is_cut_off_by_the_next(table: Path, cut: int) -> None:
    log = ChangeLog(table)
    log.append(b"whole")
    log.append(b"torn")
    path = table.with_suffix(".log")
    path.write_bytes(path.read_bytes()[:-cut])
    again = ChangeLog(table)
    assert list(again.read()) == [b"whole"]
    again.append(b"next")
    assert lines(table) == [b"whole", b"next"]
    assert [one.name for one in table.parent.iterdir()] == ["x.log"]


def test_a_damaged_line_is_passed_over_and_its_file_copied_aside(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was renamed: a start that was killed before it wrote the table lost the whole lines."""
    log = ChangeLog(table)
    for number in range(3):
        log.append(b"line%d" % number)
    path = table.with_suffix(".log")
    damaged = path.read_bytes().replace(b"line1", b"lin\xff\x0a")
    path.write_bytes(damaged)
    for _ in range(2):  # the second start follows a start that was killed
        again = ChangeLog(table)
        assert list(again.read()) == [b"line0", b"line2"]
        assert again.is_damaged
        assert (table.parent / "x.log.damaged").read_bytes() == path.read_bytes() == damaged
        assert "damaged log of changes kept aside" in caplog.text
    again.append(b"line3")
    assert lines(table) == [b"line0", b"line2", b"line3"]
    again.start_over()
    again.append(b"line4")
    last = ChangeLog(table)
    assert list(last.read()) == [b"line4"]
    assert not last.is_damaged


def test_what_is_damaged_behind_the_last_whole_line_is_cut_off_by_the_next(table: Path) -> None:
    ChangeLog(table).append(b"whole")
    path = table.with_suffix(".log")
    path.write_bytes(path.read_bytes() + b"damaged\nmore\n")
    again = ChangeLog(table)
    assert list(again.read()) == [b"whole"]
    again.append(b"next")
    assert lines(table) == [b"whole", b"next"]


def test_a_line_that_could_not_be_written_is_not_there(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ChangeLog(table)
    log.append(b"first")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("aerobee.broker.tables.files.change_log.sync_all", full)
        with pytest.raises(OSError, match="No space"):
            log.append(b"second")
    log.append(b"third")
    assert lines(table) == [b"first", b"third"]


def test_nothing_is_written_where_the_check_says_no(table: Path) -> None:
    def gone() -> None:
        raise FileNotFoundError("the store is gone")

    with pytest.raises(FileNotFoundError):
        ChangeLog(table, gone).append(b"x")
    assert list(table.parent.iterdir()) == []
