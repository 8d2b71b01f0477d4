"""Claims about index files in the scrub: entries that lead nowhere are named, entries added
meanwhile are not."""

from pathlib import Path

import pytest

from aerobee.store.background.scrub.index_scrub import IndexFileCheck
from aerobee.store.disk.files import Files
from aerobee.store.message_store import MessageStore
from tests.crash.damage.judge import scrub_once
from tests.unit.store.support import fill, flip, message, small_settings

HEADER, SLOTS = 40, 50


def stopped(root: Path, count: int = 100) -> list[Path]:
    """A stopped store; its index files in order, two full ones and a third."""
    store = MessageStore.open(small_settings(root))
    fill(store, count)
    assert store.close()
    return sorted((root / "index").iterdir())


def opened(root: Path) -> MessageStore:
    """A store whose scrub does nothing by itself before it is asked."""
    return MessageStore.open(small_settings(root, scrub_bytes_per_second=1 << 40))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("damage in an index file")]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(("byte", "bit"), [(3, 4), (0, 128), (19, 1), (5, 64)])
def test_damaged_entry_is_named_once(
    tmp_path: Path, number: int, byte: int, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    paths = stopped(tmp_path)
    flip(paths[number], HEADER + 4 * SLOTS + 20 * 7 + byte, bit)
    store = opened(tmp_path)
    scrub_once(store)
    scrub_once(store)
    store.close()
    assert len(said(caplog)) == 1
    assert str(paths[number]) in said(caplog)[0]


def test_slot_that_leads_nowhere_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = stopped(tmp_path)
    data = paths[0].read_bytes()
    slot = next(n for n in range(SLOTS) if any(data[HEADER + 4 * n : HEADER + 4 * n + 4]))
    flip(paths[0], HEADER + 4 * slot + 3, 1)
    store = opened(tmp_path)
    scrub_once(store)
    store.close()
    assert len(said(caplog)) == 1


def test_sound_files_are_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped(tmp_path)
    store = opened(tmp_path)
    scrub_once(store)
    store.close()
    assert said(caplog) == []


def test_entries_that_are_added_meanwhile_are_no_damage(tmp_path: Path) -> None:
    path = stopped(tmp_path)[-1]
    store = opened(tmp_path)
    check = IndexFileCheck(Files(), str(path), SLOTS)
    for number, _ in enumerate(check.run()):
        store.log.put(message(unique=f"new{number}"))
        store.dispatch()
    check.close()
    store.close()
    assert check.wrong == 0
