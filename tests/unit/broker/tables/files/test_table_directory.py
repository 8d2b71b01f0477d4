"""config/ is noticed when it is gone, and not made anew before the stop."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.files.table_directory import TableDirectory


class Store:
    """There, until a test takes it away."""

    is_gone = False

    def check(self) -> None:
        if self.is_gone:
            raise FileNotFoundError("the store is gone")


def directory_of(tmp_path: Path, store: Store | None = None) -> tuple[TableDirectory, Path]:
    path = tmp_path / "config"
    return TableDirectory(str(path), (store or Store()).check), path


def test_one_that_is_removed_is_said_once_and_not_made_by_a_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, path = directory_of(tmp_path)
    topics = JsonStateFile(path / "topics.json", check=directory.check)
    assert not directory.look()
    topics.save("{}")
    assert not directory.look()
    assert directory.problem is None
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="removed or moved away"):
        topics.save("{}")
    assert not directory.look()
    assert not directory.look()
    assert directory.problem == f"{path} is not there any more: it was removed or moved away"
    assert not path.exists()
    (tmp_path / "elsewhere").rename(path)
    assert not directory.look()
    assert directory.problem is None
    topics.save("{}")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.ERROR, logging.WARNING]


def test_another_one_in_its_place_gets_all_tables_again(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    directory, path = directory_of(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.mkdir()
    assert directory.look()
    assert not directory.look()
    directory.check()


def test_the_stop_makes_it_anew_where_the_store_is_there(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    directory, path = directory_of(tmp_path)
    assert not directory.make_anew()
    shutil.rmtree(path)
    assert directory.make_anew()
    JsonStateFile(path / "topics.json", check=directory.check).save("{}")
    assert (path / "topics.json").exists()


def test_of_a_store_that_is_gone_it_is_not_made_anew(tmp_path: Path) -> None:
    store = Store()
    (tmp_path / "config").mkdir()
    directory, path = directory_of(tmp_path, store)
    shutil.rmtree(path)
    store.is_gone = True
    assert not directory.look()
    assert directory.problem is None
    assert not directory.make_anew()
    with pytest.raises(FileNotFoundError, match="the store is gone"):
        directory.check()


def test_a_store_that_has_saved_no_table_lacks_none(tmp_path: Path) -> None:
    directory, path = directory_of(tmp_path)
    assert not directory.look()
    assert not directory.make_anew()
    JsonStateFile(path / "topics.json", check=directory.check).save("{}")
    assert directory.problem is None
