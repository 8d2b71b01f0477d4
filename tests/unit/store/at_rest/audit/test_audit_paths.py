"""The tools on a log that is dealt to several directories."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile, pretty
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import rebuild
from aerobee.store.at_rest.repair.repair import plan_repair, repair
from aerobee.store.at_rest.repair.truncate import plan_cut, truncate
from aerobee.store.message_store import MessageStore
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import bodies, fill, small_settings, tree


def save(path: str, content: Any) -> None:
    JsonStateFile(path).save(pretty(content))


@pytest.fixture
def changes(tmp_path: Path) -> dict[str, Any]:
    return {"commit_log_path": f"{tmp_path}/one,{tmp_path}/two"}


@pytest.fixture
def made(tmp_path: Path, changes: dict[str, Any]) -> list[bytes]:
    store = MessageStore.open(small_settings(tmp_path / "store", **changes))
    made = fill(store, 100)
    assert store.close()
    at.keep_topics(tmp_path / "store")
    return made


def rest_of(tmp_path: Path, changes: dict[str, Any]) -> StoreAtRest:
    return StoreAtRest(small_settings(tmp_path / "store", **changes))


def test_all_directories_are_verified(
    tmp_path: Path, made: list[bytes], changes: dict[str, Any]
) -> None:
    report = at.check(tmp_path / "store", **changes)
    assert (report.sound, report.counts.records) == (True, 100)
    (tmp_path / "two" / f"{4096:020d}").unlink()
    report = at.check(tmp_path / "store", **changes)
    assert at.kinds(report) == {"segment-missing", "record-damaged"}


def test_queues_are_rebuilt_from_all_of_them(
    tmp_path: Path, made: list[bytes], changes: dict[str, Any]
) -> None:
    before = tree(tmp_path / "store", "consumequeue")
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    with rest_of(tmp_path, changes) as rest:
        rebuild(rest)
    assert tree(tmp_path / "store", "consumequeue") == before


def test_a_missing_segment_is_replaced_and_what_is_taken_out_is_kept(
    tmp_path: Path, made: list[bytes], changes: dict[str, Any]
) -> None:
    (tmp_path / "two" / f"{4096:020d}").unlink()
    (tmp_path / "two" / "foreign").write_text("mine")
    with rest_of(tmp_path, changes) as rest:
        repair(rest, plan_repair(rest), save)
    assert at.kinds(at.check(tmp_path / "store", **changes)) <= {"slot-lost"}
    (aside,) = (tmp_path / "store").glob("lost+found-*")
    assert (aside / "commitlog" / "foreign").read_text() == "mine"


def test_the_end_is_cut_in_all_of_them(
    tmp_path: Path, made: list[bytes], changes: dict[str, Any]
) -> None:
    store = MessageStore.open(small_settings(tmp_path / "store", **changes))
    place = at.unit(tmp_path / "store", 0, 30)[0]
    assert store.close()
    with rest_of(tmp_path, changes) as rest:
        truncate(rest, plan_cut(rest, at=place), save)
    assert at.check(tmp_path / "store", **changes).sound
    store = MessageStore.open(small_settings(tmp_path / "store", **changes))
    assert bodies(store) == made[:30]
    assert store.close()
