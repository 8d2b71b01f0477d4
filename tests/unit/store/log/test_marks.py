"""Claims about the marks of a log: which move moves which, and what follows from them."""

import pytest

from aerobee.config.model import Settings
from aerobee.store.log.marks import Marks, PooledMarks
from tests.unit.store.support import Heard


def made(kind: type[Marks] = Marks, **settings: object) -> Marks:
    return kind(Settings.for_tests(**settings), 100, 7, Heard())


def test_all_marks_begin_at_the_end_of_the_log() -> None:
    marks = made()
    assert [marks.written, marks.committed, marks.durable, marks.dispatched] == [100] * 4
    assert [marks.written_ms, marks.committed_ms, marks.dispatched_ms] == [7] * 3


def test_without_a_pool_what_is_written_is_committed() -> None:
    marks = made()
    marks.write(200, 8)
    assert (marks.written, marks.committed, marks.committed_ms) == (200, 200, 8)
    assert (marks.durable, marks.dispatched) == (100, 100)


def test_with_a_pool_the_commit_thread_moves_the_committed_mark() -> None:
    marks = made(PooledMarks)
    assert isinstance(marks, PooledMarks)
    marks.write(200, 8)
    assert (marks.written, marks.committed, marks.committed_ms) == (200, 100, 7)
    marks.commit(150, 7)
    assert (marks.committed, marks.readable) == (150, 150)


@pytest.mark.parametrize(
    ("flush", "kept", "dispatchable", "waits"),
    [("ASYNC_FLUSH", 300, 300, False), ("SYNC_FLUSH", 200, 200, True)],
)
def test_what_is_kept_and_may_become_visible_follows_from_the_flush_mode(
    flush: str, kept: int, dispatchable: int, waits: bool
) -> None:
    marks = made(flush_disk_type=flush)
    marks.write(300, 8)
    marks.sync(200)
    marks.dispatch(150, 8)
    assert (marks.kept, marks.dispatchable, marks.settled) == (kept, dispatchable, 150)
    assert (marks.answers_wait, marks.dispatch_waits) == (waits, waits)


def test_a_store_that_breaks_is_read_up_to_the_durable_mark() -> None:
    marks = made()
    marks.write(300, 8)
    assert marks.readable == 300
    marks.freeze()
    assert (marks.readable, marks.frozen_at) == (100, 100)


def test_the_listener_hears_of_syncs_and_commits() -> None:
    heard = Heard()
    marks = PooledMarks(Settings.for_tests(), 100, 7, heard)
    marks.write(300, 8)
    marks.commit(300, 8)
    marks.sync(300)
    assert (heard.committed, heard.durable) == ([300, 300], [100, 300])
