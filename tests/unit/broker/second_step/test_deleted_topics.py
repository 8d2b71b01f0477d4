"""Deletions are remembered over restarts, as long as something waits from before them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.second_step import deleted_topics
from aerobee.broker.second_step.deleted_topics import DeletedTopics
from aerobee.broker.second_step.waiting_sources import Forgetting
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from tests.unit.broker.tables.clients_support import Endless
from tests.unit.store.support import marks_at

END = 10_000


class Places:
    """Something that waits, at places that a test sets."""

    kind = "delayed"

    def __init__(self, *places: int | None) -> None:
        self.found = places

    def oldest(self) -> Iterator[int | None]:
        return iter(self.found)


def file_of(path: Path) -> JsonStateFile:
    return JsonStateFile(path / "deletedTopics.json")


def saved(table: DeletedTopics) -> DeletedTopics:
    changes = table.take_changes()
    assert changes is not None
    table.save(changes)
    return table


def test_a_start_knows_the_deletions_of_the_life_before(tmp_path: Path) -> None:
    table = DeletedTopics(file_of(tmp_path), 0)
    table.add("T", 700)
    table.add("T", 800)
    table.add("U", 900)
    saved(table)
    again = DeletedTopics(file_of(tmp_path), END)
    assert (again.offset_of("T"), again.offset_of("U"), again.offset_of("V")) == (800, 900, None)
    assert again.take_changes() is None


def test_behind_a_log_that_a_power_cut_made_shorter_new_messages_are_not_taken_for_old_ones(
    tmp_path: Path,
) -> None:
    table = DeletedTopics(file_of(tmp_path), 0)
    table.add("T", 800)
    saved(table)
    # The log ends at 500 now; a second start finds it longer than the deletion's place was.
    assert DeletedTopics(file_of(tmp_path), 500).offset_of("T") == 500
    assert DeletedTopics(file_of(tmp_path), END).offset_of("T") == 500


def test_a_save_that_another_has_begun_is_waited_for(tmp_path: Path) -> None:
    """A deletion is answered when its file is written, whoever took the text."""
    table = DeletedTopics(file_of(tmp_path), 0)
    table.add("T", 800)
    taken = table.take_changes()
    assert taken is not None
    assert table.take_changes() is None
    table.save()
    assert DeletedTopics(file_of(tmp_path), END).offset_of("T") == 800
    before = file_of(tmp_path).path.stat().st_ino
    table.save(taken)
    assert file_of(tmp_path).path.stat().st_ino == before


def test_what_could_not_be_saved_is_saved_with_the_next_look(tmp_path: Path) -> None:
    table = DeletedTopics(file_of(tmp_path / "config"), 0)
    (tmp_path / "config").write_text("a file stands where the directory has to be")
    table.add("T", 800)
    table.take_changes()
    with pytest.raises(FileExistsError):
        table.save()
    table.mark_unsaved()
    (tmp_path / "config").unlink()
    saved(table)
    assert DeletedTopics(file_of(tmp_path / "config"), END).offset_of("T") == 800


def test_no_more_are_deleted_than_can_be_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_topics, "MOST_DELETIONS", 2)
    table = DeletedTopics(file_of(tmp_path), 0)
    table.add("T", 1)
    table.add("U", 2)
    table.check_room("T")
    with pytest.raises(BadRequest, match="messages wait that were accepted before") as raised:
        table.check_room("V")
    assert raised.value.code == ResponseCode.SYSTEM_BUSY
    table.forget_up_to(1)
    table.check_room("V")


def test_a_deletion_is_forgotten_when_nothing_waits_from_before_it(tmp_path: Path) -> None:
    turns, waits = Endless(), Places(None, 850)
    table = DeletedTopics(file_of(tmp_path), 0)
    table.add("T", 800)
    table.add("U", 900)
    forgetting = Forgetting(turns, table, [waits], marks_at(1_000))
    forgetting.look()
    forgetting.look()
    assert (table.offset_of("T"), table.offset_of("U")) == (None, 900)
    # A message that is not visible yet may wait.
    waits.found = (None, None)
    not_visible = Forgetting(turns, table, [waits], marks_at(899))
    not_visible.look()
    not_visible.look()
    assert table.offset_of("U") == 900
    forgetting.look()
    forgetting.look()
    assert len(table) == 0
    assert saved(table).offset_of("U") is None
    assert len(DeletedTopics(file_of(tmp_path), END)) == 0


def test_what_was_dropped_just_now_may_wait_again_after_a_kill(tmp_path: Path) -> None:
    """A deletion was forgotten, on the disk too, before the progress of what it concerned was
    saved: after a kill those messages were delivered again, into the topic made anew."""
    waits, table = Places(700), DeletedTopics(file_of(tmp_path), 0)
    table.add("T", 800)
    forgetting = Forgetting(Endless(), table, [waits], marks_at(1_000))
    forgetting.look()
    waits.found = (None,)
    forgetting.look()
    assert table.offset_of("T") == 800
    forgetting.look()
    assert table.offset_of("T") is None


def test_a_table_at_its_limit_is_read_again(tmp_path: Path) -> None:
    table = DeletedTopics(file_of(tmp_path), 0)
    for number in range(deleted_topics.MOST_DELETIONS):
        table.add(f"{number:05d}".ljust(127, "x"), number)
    saved(table)
    assert len(DeletedTopics(file_of(tmp_path), END)) == deleted_topics.MOST_DELETIONS


def test_a_slave_has_its_master_s_deletions_and_lowers_them_as_a_master(tmp_path: Path) -> None:
    master = DeletedTopics(file_of(tmp_path), 0)
    master.add("T", 900)
    master.add("U", 100)
    slave = DeletedTopics(file_of(tmp_path / "slave"), None)
    slave.add("V", 1)
    slave.take_changes()
    slave.replace(DeletedTopics.read(master.copy()))
    assert (slave.offset_of("T"), slave.offset_of("V")) == (900, None)
    assert slave.take_changes() is not None
    slave.save()
    again = DeletedTopics(file_of(tmp_path / "slave"), None)
    assert again.offset_of("T") == 900
    again.lower_to(500)
    assert DeletedTopics(file_of(tmp_path / "slave"), None).offset_of("T") == 500


def test_a_slave_forgets_no_deletion_by_itself(tmp_path: Path) -> None:
    table = DeletedTopics(file_of(tmp_path), None)
    table.add("T", 800)
    forgetting = Forgetting(Endless(), table, [Places()], marks_at(1_000), leads=False)
    for _ in range(3):
        forgetting.look()
    assert table.offset_of("T") == 800
    forgetting.lead(anew=True)
    for _ in range(2):
        forgetting.look()
    assert table.offset_of("T") is None
