"""Claims about consume queue files that somebody emptied or took away: a start makes them again.

After a clean stop nobody looks for missing units: all were dispatched and synced. The file's length
tells that they are gone, so that is where it has to be noticed.
"""

import errno
import os
from pathlib import Path

import pytest

from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore
from tests.faulty_files import FaultyFiles
from tests.unit.store.support import bodies, fill, queue_file, small_settings

UNITS = 10  # of one file


def stopped(root: Path) -> list[bytes]:
    """A cleanly stopped store of three and a half queue files."""
    store = MessageStore.open(small_settings(root))
    made = fill(store, 35)
    assert store.close()
    return made


def gone(path: Path, how: str) -> None:
    if how == "removed":
        path.unlink()
    else:
        os.truncate(path, 0)


# The first one removed looks as if its messages had expired; reading the whole log would tell.
@pytest.mark.parametrize(
    ("number", "how"),
    [(0, "emptied"), (1, "emptied"), (1, "removed"), (2, "emptied"), (2, "removed")],
)
def test_queue_file_that_is_gone_is_made_again(tmp_path: Path, number: int, how: str) -> None:
    made = stopped(tmp_path)
    gone(queue_file(tmp_path, start=number * UNITS * 20), how)
    store = MessageStore.open(small_settings(tmp_path))
    assert bodies(store) == made
    assert store.recovery.entries_written == UNITS
    assert store.close()


@pytest.mark.parametrize("broken", ["write", "data_sync", "rename"])
def test_start_that_fails_while_it_makes_the_file_leaves_it_to_the_next(
    tmp_path: Path, broken: str
) -> None:
    made = stopped(tmp_path)
    gone(queue_file(tmp_path, start=UNITS * 20), "emptied")
    for nth in range(1, 4):
        files = FaultyFiles(tmp_path)
        files.fail(broken, errno.EIO, nth=nth)
        try:
            store = MessageStore.open(small_settings(tmp_path), files)
        except StoreError:
            continue
        store.close()
    store = MessageStore.open(small_settings(tmp_path))
    assert bodies(store) == made
    store.close()
