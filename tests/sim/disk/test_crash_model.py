"""The model of the disk: which states a crash may leave, and that the right ones come out."""

import random

import pytest

from tests.sim.disk.crash_choices import choices, picks_of
from tests.sim.disk.crash_model import CrashModel, Doubt, State
from tests.sim.disk.recorded_files import PAGE, RecordedFiles

ROOT = "/disk"


def model_of(files: RecordedFiles) -> CrashModel:
    files.observe()
    return CrashModel.at(files.start, files.journal)


def states(files: RecordedFiles) -> list[State]:
    """Every combination of every version."""
    model = model_of(files)
    doubts = model.doubts()
    found = [model.build(doubts, [])] if not doubts else []
    picks = [[]]
    for doubt in doubts:
        picks = [[*one, version] for one in picks for version in range(doubt.versions)]
    found += [model.build(doubts, one) for one in picks if one]
    return found


def contents(files: RecordedFiles, name: str) -> set[bytes | None]:
    return {state.get(f"{ROOT}/{name}") for state in states(files)}


def durable(content: dict[str, bytes]) -> RecordedFiles:
    return RecordedFiles(ROOT, {f"{ROOT}/{name}": data for name, data in content.items()})


def test_nothing_is_in_doubt_of_a_disk_left_alone() -> None:
    files = durable({"a": b"x"})
    assert states(files) == [{f"{ROOT}/a": b"x"}]


def test_a_write_is_there_or_not_until_it_is_synced() -> None:
    files = durable({"a": b"old"})
    fd = files.open(f"{ROOT}/a")
    files.write(fd, 0, b"new")
    assert contents(files, "a") == {b"old", b"new"}
    files.data_sync(fd)
    assert contents(files, "a") == {b"new"}
    files.close(fd)


def test_every_version_since_the_last_sync_is_possible() -> None:
    files = durable({"a": b"0"})
    fd = files.open(f"{ROOT}/a")
    for version in (b"1", b"2", b"3"):
        files.write(fd, 0, version)
    assert contents(files, "a") == {b"0", b"1", b"2", b"3"}
    files.close(fd)


def test_pages_are_on_their_own() -> None:
    files = durable({"a": bytes(2 * PAGE)})
    fd = files.open(f"{ROOT}/a")
    files.write(fd, PAGE - 1, b"xy")
    ends = {(data[PAGE - 1], data[PAGE]) for data in contents(files, "a") if data}
    assert ends == {(0, 0), (ord("x"), 0), (0, ord("y")), (ord("x"), ord("y"))}
    files.close(fd)


def test_length_and_content_are_on_their_own() -> None:
    files = durable({"a": b""})
    fd = files.open(f"{ROOT}/a")
    files.write(fd, 0, b"abc")
    assert contents(files, "a") == {b"", b"\0\0\0", b"abc"}
    files.close(fd)


def test_a_cut_is_in_doubt_as_well() -> None:
    files = durable({"a": b"abcdef"})
    fd = files.open(f"{ROOT}/a")
    files.set_size(fd, 2)
    assert {b"abcdef", b"ab"} <= contents(files, "a")
    files.sync(fd)
    assert contents(files, "a") == {b"ab"}
    files.close(fd)


def test_stores_through_a_mapping_are_seen() -> None:
    files = durable({"a": bytes(PAGE)})
    fd = files.open(f"{ROOT}/a")
    memory = files.map(fd, PAGE)
    memory[7:10] = b"abc"
    files.observe()
    memory[7:10] = b"xyz"
    assert {data[7:10] for data in contents(files, "a") if data} == {b"\0\0\0", b"abc", b"xyz"}
    files.data_sync(fd)
    assert {data[7:10] for data in contents(files, "a") if data} == {b"xyz"}
    memory.close()
    files.close(fd)


def test_a_sync_covers_what_was_there_when_it_began() -> None:
    files = durable({"a": b"0"})
    fd = files.open(f"{ROOT}/a")
    files.write(fd, 0, b"1")
    files.during_sync = lambda _path: files.write(fd, 0, b"2")
    files.data_sync(fd)
    assert contents(files, "a") == {b"1", b"2"}
    files.close(fd)


def test_what_a_failed_sync_was_about_stays_in_doubt_until_written_again() -> None:
    files = durable({"a": b"0"})
    fd = files.open(f"{ROOT}/a")
    files.write(fd, 0, b"1")
    files.fail_sync = "a"
    with pytest.raises(OSError, match="Input/output error"):
        files.data_sync(fd)
    files.data_sync(fd)  # succeeds, and says nothing
    assert contents(files, "a") == {b"0", b"1"}
    files.write(fd, 0, b"2")
    files.data_sync(fd)
    assert contents(files, "a") == {b"2"}
    files.close(fd)


def test_a_new_name_needs_a_sync_of_its_directory() -> None:
    files = durable({})
    fd = files.open(f"{ROOT}/a", create=True)
    files.write(fd, 0, b"x")
    files.sync(fd)
    assert contents(files, "a") == {None, b"x"}
    files.sync_directory(ROOT)
    assert contents(files, "a") == {b"x"}
    files.close(fd)


def test_a_rename_is_done_wholly_or_not_at_all() -> None:
    files = durable({"new": b"new", "name": b"old"})
    files.rename(f"{ROOT}/new", f"{ROOT}/name")
    pairs = {(state.get(f"{ROOT}/new"), state[f"{ROOT}/name"]) for state in states(files)}
    assert pairs == {(b"new", b"old"), (None, b"new")}
    files.sync_directory(ROOT)
    assert contents(files, "name") == {b"new"}


def test_of_two_removals_either_may_be_undone() -> None:
    files = durable({"a": b"", "b": b""})
    files.remove(f"{ROOT}/a")
    files.remove(f"{ROOT}/b")
    names = {frozenset(path[-1] for path in state) for state in states(files)}
    assert names == {frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")}


def test_a_file_without_its_directorys_name_is_not_there() -> None:
    files = durable({})
    files.make_directories(f"{ROOT}/d")
    fd = files.open(f"{ROOT}/d/a", create=True)
    files.sync(fd)
    files.sync_directory(f"{ROOT}/d")
    assert contents(files, "d/a") == {None, b""}
    files.sync_directory(ROOT)
    assert contents(files, "d/a") == {b""}
    files.close(fd)


def test_newest_is_what_a_killed_process_leaves() -> None:
    files = durable({"a": b"old"})
    files.make_directories(f"{ROOT}/d")
    fd = files.open(f"{ROOT}/a")
    files.write(fd, 0, b"new")
    files.rename(f"{ROOT}/a", f"{ROOT}/b")
    state, numbers = model_of(files).newest()
    assert state == files.image()
    assert sorted(numbers) == sorted(state)
    files.close(fd)


def test_a_disk_goes_on_from_an_earlier_place() -> None:
    files = durable({"a": b"0"})
    fd = files.open(f"{ROOT}/a")
    files.write(fd, 0, b"1")
    place = len(files.journal)
    files.data_sync(fd)
    files.close(fd)
    image, numbers = CrashModel.at(files.start, files.journal[:place]).newest()
    later = RecordedFiles(ROOT, image, numbers=numbers)
    later.go_on_from(files.start, files.journal[:place])
    fd = later.open(f"{ROOT}/a")
    later.write(fd, 0, b"2")
    assert contents(later, "a") == {b"0", b"1", b"2"}
    later.data_sync(fd)
    assert contents(later, "a") == {b"2"}
    later.close(fd)


def test_what_was_removed_before_an_earlier_place_is_no_new_file() -> None:
    """Its name may come back, and then with its own content."""
    files = durable({"a": b"0"})
    fd = files.open(f"{ROOT}/b", create=True)
    files.write(fd, 0, b"1")
    files.data_sync(fd)
    files.close(fd)
    files.remove(f"{ROOT}/b")
    image, numbers = CrashModel.at(files.start, files.journal).newest()
    later = RecordedFiles(ROOT, image, numbers=numbers)
    later.go_on_from(files.start, files.journal)
    fd = later.open(f"{ROOT}/c", create=True)
    later.write(fd, 0, b"2")
    later.data_sync(fd)
    later.close(fd)
    assert contents(later, "b") == {None, b"1"}
    assert contents(later, "c") == {None, b"2"}


# --- choices --------------------------------------------------------------------------------------


def some_doubts(count: int) -> list[Doubt]:
    return [Doubt("page", 1, number, 2 + number % 3) for number in range(count)]


def test_up_to_ten_doubts_every_combination_is_looked_at() -> None:
    doubts = some_doubts(4)
    seen = {tuple(picks_of(name, doubts)) for name in choices(doubts)}
    for bits in range(16):
        assert tuple(doubts[at].versions - 1 if bits >> at & 1 else 0 for at in range(4)) in seen


def test_beyond_ten_each_is_alone_and_each_is_missing_once() -> None:
    doubts = some_doubts(14)
    names = list(choices(doubts))
    newest = [doubt.versions - 1 for doubt in doubts]
    assert picks_of("alone-3", doubts) == [0] * 3 + [newest[3]] + [0] * 10
    assert picks_of("missing-13", doubts) == [*newest[:13], 0]
    assert {f"alone-{at}" for at in range(14)} | {f"missing-{at}" for at in range(14)} <= set(names)
    assert sum(name.startswith("random-") for name in names) == 200


def test_a_name_always_stands_for_the_same_choice() -> None:
    doubts = some_doubts(12)
    for name in random.Random(1).sample(list(choices(doubts)), 40):
        assert picks_of(name, doubts) == picks_of(name, doubts)


def test_torn_pages_mix_versions_by_sectors() -> None:
    files = durable({"a": bytes(PAGE)})
    fd = files.open(f"{ROOT}/a")
    files.write(fd, 0, b"\1" * PAGE)
    model = model_of(files)
    doubts = model.doubts()
    state = model.build(doubts, [(0, 1, 0, 0, 1, 1, 1, 0)])
    data = state[f"{ROOT}/a"]
    assert data is not None
    assert [data[at] for at in range(0, PAGE, 512)] == [0, 1, 0, 0, 1, 1, 1, 0]
    assert any(isinstance(pick, tuple) for pick in picks_of("torn-1", doubts))
    files.close(fd)


def test_a_kill_takes_nothing_but_what_a_failed_sync_was_about() -> None:
    doubts = [Doubt("page", 1, 0, 3), Doubt("page", 1, 1, 3, True)]
    assert picks_of("kill", doubts) == [2, 0]
    assert {tuple(picks_of(f"killed-{n}", doubts)) for n in range(8)} == {(2, 0), (2, 2)}
