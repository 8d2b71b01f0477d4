"""Claims about a log without its last segments, where no offsets file tells that they are missing:
after a clean stop the start is refused, after a crash it says what its queues have lost."""

import shutil
from pathlib import Path

import pytest

from aerobee.store.errors import StoreLayoutError
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import (
    SEGMENT,
    bodies,
    fill,
    flip,
    kill_image,
    log_segment,
    message,
    queue_file,
    small_settings,
    tree,
)


def stopped_copy(root: Path, count: int = 60) -> Path:
    """A copy of a store of three segments and two queues that was stopped in order."""
    store = MessageStore.open(small_settings(root / "s"))
    fill(store, count, queues=2)
    assert store.close()
    shutil.copytree(root / "s", root / "copy")
    return root / "copy"


def last_segment(root: Path) -> Path:
    """The last that holds messages; spare ones behind it go."""
    while True:
        last = max((root / "commitlog").iterdir())
        if any(last.read_bytes()):
            return last
        last.unlink()


def test_copy_without_its_last_segment_is_refused_after_a_clean_stop(tmp_path: Path) -> None:
    root = stopped_copy(tmp_path)
    gone = last_segment(root)
    gone.unlink()
    before = tree(root, ".")
    with pytest.raises(StoreLayoutError, match="aerobee store repair") as refused:
        MessageStore.open(small_settings(root))
    assert str(gone) in str(refused.value)
    assert "entries of 2 consume queues" in str(refused.value)
    assert tree(root, ".").keys() - {"lock"} == before.keys() - {"lock"}
    assert {name: data for name, data in tree(root, ".").items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }


def test_segment_with_one_message_is_missed(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path / "s"))
    while store.written <= SEGMENT:
        fill(store, 1)
    assert store.close()
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    log_segment(tmp_path / "copy", SEGMENT).unlink()
    with pytest.raises(StoreLayoutError, match="missing at the end"):
        MessageStore.open(small_settings(tmp_path / "copy"))


@pytest.mark.parametrize("bit", [1, 16, 64])
def test_one_wrong_unit_does_not_refuse_the_start(tmp_path: Path, bit: int) -> None:
    root = stopped_copy(tmp_path)
    made = MessageStore.open(small_settings(tmp_path / "s"))
    expected = bodies(made)
    made.close()
    flip(queue_file(root, start=400), 9 * 20 + 4, bit)  # the last one's log offset
    store = MessageStore.open(small_settings(root))
    assert bodies(store) == expected
    store.close()


def test_after_a_crash_it_is_said_what_was_cut_and_where_numbering_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MessageStore.open(small_settings(tmp_path / "s"))
    fill(store, 60, queues=2)
    root = kill_image(tmp_path / "s", tmp_path / "killed")
    store.close()
    (root / "offsets").unlink(missing_ok=True)
    last_segment(root).unlink()
    store = MessageStore.open(small_settings(root))
    left = [len(bodies(store, queue_id=number)) for number in range(2)]
    cut = 60 - sum(left)
    assert cut > 0
    assert store.recovery.entries_cut == cut
    assert f"units={cut} queues=2" in caplog.text
    for number in range(2):
        path = root / "consumequeue" / "Orders" / str(number)
        line = f"path={path} units={30 - left[number]} numbering goes on at={left[number]}"
        assert line in caplog.text
        assert store.log.put(message(queue_id=number)).queue_offset == left[number]
    assert f"{cut} entries of 2 queues cut" in store.recovery.summary()
    store.close()
