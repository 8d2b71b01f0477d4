"""A copy of a store, or a directory of unknown past, from which queues or their files are gone.

They are made again before a number is given out, though no mark of ours is believed there."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.message_store import MessageStore
from tests.unit.store.support import as_copy, bodies, message, small_settings

QUEUES = 3
#: Messages of a queue: it has four files of ten units.
PER_QUEUE = 37


def everything(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def topic(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Orders")


def queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Orders" / "1")


def files(root: Path) -> None:
    for path in (root / "consumequeue" / "Orders" / "1").iterdir():
        path.unlink()


def last_file(root: Path) -> None:
    max((root / "consumequeue" / "Orders" / "1").iterdir()).unlink()


def last_files(root: Path) -> None:
    for path in sorted((root / "consumequeue" / "Orders" / "1").iterdir())[1:]:
        path.unlink()


GONE = (everything, topic, queue, files, last_file, last_files)


def nothing(root: Path) -> None:
    pass


def no_offsets(root: Path) -> None:
    (root / "offsets").unlink()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages of other topics lie behind the last of Orders, many more than a segment."""
    root = tmp_path_factory.mktemp("queues") / "stopped"
    store = MessageStore.open(small_settings(root))
    for number in range(QUEUES * PER_QUEUE):
        body = b"%d" % number + b"." * 50
        store.log.put(message(body, queue_id=number % QUEUES, unique=f"U{number}"))
    for number in range(100):
        store.log.put(message(b"%d" % number + b"." * 100, "Others", unique=f"O{number}"))
    store.dispatch()
    assert store.close()
    return root


def copied(stopped: Path, root: Path, *, killed: bool) -> Path:
    shutil.copytree(stopped, root)
    if killed:
        (root / "abort").touch()
        as_copy(root)
    return root


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("marks", [nothing, no_offsets], ids=["copy", "without offsets"])
@pytest.mark.parametrize("gone", GONE, ids=lambda gone: gone.__name__)
def test_queues_that_are_gone_are_made_again(
    stopped: Path,
    tmp_path: Path,
    gone: Callable[[Path], None],
    marks: Callable[[Path], None],
    killed: bool,
) -> None:
    root = copied(stopped, tmp_path / "copy", killed=killed)
    gone(root)
    marks(root)
    with closing(MessageStore.open(small_settings(root, scrub_bytes_per_second=0))) as store:
        for queue_id in range(QUEUES):
            # The next number is given out before anybody has read.
            new = store.log.put(message(b"new", queue_id=queue_id))
            assert new.queue_offset == PER_QUEUE
        store.dispatch()
        for queue_id in range(QUEUES):
            found = bodies(store, queue_id=queue_id)
            assert len(found) == PER_QUEUE + 1
            assert [int(body.rstrip(b".")) for body in found[:-1]] == list(
                range(queue_id, QUEUES * PER_QUEUE, QUEUES)
            )
        assert store.log.put(message(b"new", "Others")).queue_offset == 100
    assert verify(small_settings(root)).sound


def test_sound_copy_is_read_from_where_its_queues_end(stopped: Path, tmp_path: Path) -> None:
    """That nothing is missing is known from the marks that came with it: no walk."""
    root = copied(stopped, tmp_path / "copy", killed=False)
    with closing(MessageStore.open(small_settings(root))) as store:
        assert store.recovery.records_read == 0
    (root / "offsets").unlink()
    with closing(MessageStore.open(small_settings(root))) as store:
        assert store.recovery.records_read == 0
