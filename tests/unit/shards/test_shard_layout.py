"""A change of the number of shards never leaves stores aside in silence."""

from pathlib import Path

import pytest

from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings
from aerobee.shards.shard_layout import check_layout


def fill(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "file").write_bytes(b"")


def refusal(path: Path, count: int, **changes: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_layout(Settings.for_tests(store_path=str(path), **changes), count)
    return str(caught.value)


def test_an_empty_or_missing_directory_takes_any_number(tmp_path: Path) -> None:
    for count in (1, 2, 64):
        check_layout(Settings.for_tests(store_path=str(tmp_path)), count)
        check_layout(Settings.for_tests(store_path=str(tmp_path / "none")), count)


def test_as_many_shards_or_more_find_all_stores(tmp_path: Path) -> None:
    fill(tmp_path, "shard-0", "shard-1", "namesrv")
    for count in (2, 3):
        check_layout(Settings.for_tests(store_path=str(tmp_path)), count)


def test_fewer_shards_than_stores_are_refused_with_the_number_to_use(tmp_path: Path) -> None:
    fill(tmp_path, "shard-0", "shard-1", "shard-3", "shard-10")
    text = refusal(tmp_path, 2)
    assert "shard-3, shard-10" in text
    assert "shard-1," not in text
    assert "--shards 11" in text


@pytest.mark.parametrize("names", [("shard-0",), ("shard-0", "shard-1")])
def test_a_broker_without_shards_does_not_pass_over_theirs(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    fill(tmp_path, *names)
    assert "--shards 2" in refusal(tmp_path, 1)


def test_an_emptied_shard_is_in_nobody_s_way(tmp_path: Path) -> None:
    fill(tmp_path, "shard-0", "shard-1")
    (tmp_path / "shard-2").mkdir()
    check_layout(Settings.for_tests(store_path=str(tmp_path)), 2)


@pytest.mark.parametrize("sign", ["commitlog", "config", "consumequeue"])
def test_shards_do_not_begin_beside_the_store_of_one_broker(tmp_path: Path, sign: str) -> None:
    fill(tmp_path, sign)
    check_layout(Settings.for_tests(store_path=str(tmp_path)), 1)
    text = refusal(tmp_path, 2)
    assert str(tmp_path / "shard-0") in text
    assert "keeps name and port" in text


def test_a_commit_log_elsewhere_is_looked_at_as_well(tmp_path: Path) -> None:
    log = tmp_path / "disk"
    fill(log, "00000000000000000000")
    text = refusal(tmp_path / "store", 2, commit_log_path=str(log))
    assert f"{log}/shard-0" in text


def test_a_name_server_s_table_that_was_moved_along_is_missed(tmp_path: Path) -> None:
    fill(tmp_path, "shard-0/namesrv")
    assert "namesrv" in refusal(tmp_path, 2)
    (tmp_path / "namesrv").mkdir()
    (tmp_path / "namesrv" / "kvConfig.json").write_text("{}")
    check_layout(Settings.for_tests(store_path=str(tmp_path)), 2)
