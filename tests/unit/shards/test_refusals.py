"""Refusals of `aerobee serve --shards` before it starts anything, in one sentence and a code."""

from pathlib import Path

import pytest

from aerobee.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--shards", "2", "--dev"), 2, "leave out --shards"),
        (("--shards", "2", "--port", "65530"), 78, "no room for the ports of 2 shards"),
        (("--shards", "2", "--port", "9868"), 78, "of shard 1"),
    ],
)
def test_what_cannot_be_is_said(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    store = tmp_path / "store"
    assert main(["serve", "--store", str(store), *arguments]) == code
    assert said in capfd.readouterr().err
    assert not store.exists()


def test_stores_of_shards_stop_a_broker_without(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shard-0" / "commitlog").mkdir(parents=True)
    assert main(["serve", "--store", str(tmp_path)]) == 78
    assert "--shards 2" in capfd.readouterr().err
    assert not (tmp_path / "commitlog").exists()
