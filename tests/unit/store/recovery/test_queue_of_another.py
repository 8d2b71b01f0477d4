"""Claims about consume queues with the content of another one, and with files of another length: a
start makes them again from the log before anybody is served."""

import os
import shutil
from pathlib import Path

import pytest

from aerobee.store.errors import StoreLayoutError, StoreSizeMismatch
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import (
    adopt,
    bodies,
    fill,
    flip,
    kill_image,
    queue_file,
    small_settings,
    tree,
)

COUNT = 140
UNIT = 20


def stored(root: Path, how: str) -> tuple[Path, list[list[bytes]]]:
    """A store of two queues, stopped or killed or copied; the bodies of each."""
    store = MessageStore.open(small_settings(root / "s"))
    made = fill(store, COUNT, queues=2)
    killed = kill_image(root / "s", root / "killed")
    assert store.close()
    if how == "copied":
        (root / "s" / "offsets").unlink()
    path = root / "s" if how != "killed" else adopt(killed)
    return path, [made[0::2], made[1::2]]


def put_in_place_of(root: Path, queue_id: int, other: int) -> None:
    folder = root / "consumequeue" / "Orders"
    shutil.rmtree(folder / str(queue_id))
    shutil.copytree(folder / str(other), folder / str(queue_id))


@pytest.mark.parametrize("how", ["stopped", "killed", "copied"])
def test_queue_with_the_units_of_another_is_made_again(tmp_path: Path, how: str) -> None:
    root, made = stored(tmp_path, how)
    before = tree(root, "consumequeue")
    put_in_place_of(root, 0, 1)
    store = MessageStore.open(small_settings(root, scrub_bytes_per_second=0))
    assert store.recovery.entries_blanked == 0
    assert [bodies(store, queue_id=number) for number in range(2)] == made
    assert store.close()
    assert tree(root, "consumequeue") == before


@pytest.mark.parametrize("how", ["stopped", "killed", "copied"])
def test_one_file_with_the_units_of_another_is_made_again(tmp_path: Path, how: str) -> None:
    root, made = stored(tmp_path, how)
    shutil.copy(queue_file(root, start=400, queue_id=1), queue_file(root, start=400))
    store = MessageStore.open(small_settings(root, scrub_bytes_per_second=0))
    assert [bodies(store, queue_id=number) for number in range(2)] == made
    assert store.close()


def test_one_wrong_unit_costs_no_start_a_walk(tmp_path: Path) -> None:
    root, _ = stored(tmp_path, "stopped")
    for slot in (0, COUNT // 4):  # both are looked at; the scrub mends them
        flip(queue_file(root, start=slot // 10 * 200), slot % 10 * UNIT + 6, 1)
    store = MessageStore.open(small_settings(root, scrub_bytes_per_second=0))
    assert store.recovery.read_from == store.recovery.log_end
    assert store.close()


def test_sound_queues_cost_a_look_at_a_few_units(tmp_path: Path) -> None:
    root, _ = stored(tmp_path, "stopped")
    store = MessageStore.open(small_settings(root))
    assert store.recovery.records_read == 0
    assert store.close()


# --- files of another length ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stopped", "killed", "copied"])
@pytest.mark.parametrize("size", [1, 20, 100, 199, 201, 400])
@pytest.mark.parametrize("start", [0, 600, 1200])
def test_queue_file_of_another_length_is_made_again(
    tmp_path: Path, how: str, size: int, start: int
) -> None:
    root, made = stored(tmp_path, how)
    os.truncate(queue_file(root, start=start), size)
    store = MessageStore.open(small_settings(root, scrub_bytes_per_second=0))
    assert [bodies(store, queue_id=number) for number in range(2)] == made
    assert store.close()
    assert queue_file(root, start=start).stat().st_size == 200


def test_it_is_said_which_file_had_another_length(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, _ = stored(tmp_path, "stopped")
    os.truncate(queue_file(root, start=200), 77)
    MessageStore.open(small_settings(root)).close()
    assert f"path={queue_file(root, start=200)} bytes=77" in caplog.text


def test_if_most_files_have_another_length_the_setting_is_wrong(tmp_path: Path) -> None:
    root, _ = stored(tmp_path, "stopped")
    before = tree(root, "consumequeue")
    with pytest.raises(StoreSizeMismatch, match="mappedFileSizeConsumeQueue"):
        MessageStore.open(small_settings(root, consume_queue_segment_bytes=400))
    os.truncate(queue_file(root, start=200), 400)
    with pytest.raises(StoreSizeMismatch, match="mappedFileSizeConsumeQueue"):
        MessageStore.open(small_settings(root, consume_queue_segment_bytes=400))
    os.truncate(queue_file(root, start=200), 200)
    assert tree(root, "consumequeue").keys() == before.keys()


@pytest.mark.parametrize("name", ["Orders", "Orders/0"])
def test_queue_folder_that_is_a_link_to_nothing_is_refused(tmp_path: Path, name: str) -> None:
    root, _ = stored(tmp_path, "copied")
    folder = root / "consumequeue" / name
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path / "not-mounted")
    with pytest.raises(StoreLayoutError, match=f"{folder} is a link to nothing"):
        MessageStore.open(small_settings(root))
