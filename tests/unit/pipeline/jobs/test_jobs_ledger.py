"""An archive has every row once, wherever the runs before were killed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.targets import ledger as ledger_module
from aerobee.pipeline.jobs.targets.ledger import (
    ArchiveSelection,
    Ledger,
    LedgerError,
    StagedRows,
    plan_ranges,
)
from aerobee.pipeline.jobs.targets.target import Target

RECORD = 100
LOG_END = 5000
SEGMENTS = [(start, start + 1000) for start in range(0, LOG_END, 1000)]


class Killed(BaseException):
    """The process ends here."""


class KilledAt(Target):
    """Ends the process at its n-th change, before or after it, or half-way through a file."""

    def __init__(self, given: str, at: int) -> None:
        super().__init__(given)
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    def write_new(self, path: str, data: bytes) -> bool:
        self._count()
        made = super().write_new(path, data)
        self._count()
        return made

    def publish(self, path: str, to: str) -> None:
        self._count()
        super().publish(path, to)
        self._count()

    def remove_tree(self, path: str) -> None:
        self._count()
        super().remove_tree(path)
        self._count()

    def sync(self, paths: Iterable[str]) -> None:
        self._count()
        super().sync(paths)
        self._count()


def writer(target: Target, end_of_data: int = LOG_END) -> Callable[..., StagedRows | None]:
    """Rows of records of 100 bytes; the last ten bytes of each segment are blank."""

    def write(start: int, end: int, aside: str) -> StagedRows | None:
        begins = [
            place
            for place in range(start // 10 * 10, min(end, end_of_data))
            if place % 1000 % RECORD == 0 and place >= start
        ]
        if not begins:
            return None
        for number in range(2):
            folder = f"{target.path(aside)}/topic=t{number}"
            files = target._files
            files.create_dir(folder, recursive=True)
            count = getattr(target, "_count", None)
            if count:
                count()
            table = pa.table({"place": begins[number::2]})
            pq.write_table(table, f"{folder}/part.parquet", filesystem=files)
            files.create_dir(f"{target.path(aside)}/_temporary/0", recursive=True)
            # Tasks that were given up leave this behind.
            left = f"{target.path(aside)}/_temporary/0/part.parquet"
            for path in (f"{folder}/part.parquet.crc", left):
                with files.open_output_stream(path) as opened:
                    opened.write(b"x")
        return StagedRows(begins[-1] + RECORD - 10, len(begins), 0, {})

    return write


def run(target: Target, end_of_data: int = LOG_END) -> int:
    """Run the job."""
    ledger = Ledger(target)
    ledger.recover()
    entries = ledger.entries()
    work = plan_ranges(entries[-1].end if entries else None, SEGMENTS, 2000)
    made, start = 0, None
    for begin, end in work.ranges:
        begin = begin if start is None else start
        entry = ledger.archive(begin, end, writer(target, end_of_data), None)
        start = begin if entry is None else entry.end
        made += entry is not None
    return made


def places(target: Path) -> list[int]:
    found = ds.dataset(
        str(target), format="parquet", partitioning="hive", exclude_invalid_files=False
    )
    return sorted(found.to_table().column("place").to_pylist())


def by_ledger(target: Target) -> list[int]:
    """The places that a reader by the ledger sees."""
    found: list[int] = []
    if target.exists("_archive"):
        for path in Ledger(target).files():
            table = pq.read_table(target.path(path), filesystem=target._files, partitioning=None)
            found += table.column("place").to_pylist()
    return sorted(found)


def decided(target: Target) -> list[int]:
    """The rows of the ranges that are decided."""
    ends = [entry.end for entry in Ledger(target).entries()]
    return [place for place in ALL if ends and place < ends[-1]]


ALL = list(range(0, LOG_END, RECORD))


def test_an_archive_has_every_row_and_a_second_run_adds_what_is_new(tmp_path: Path) -> None:
    target = Target(str(tmp_path))
    assert run(target, 1500) == 1
    assert places(tmp_path) == list(range(0, 1500, RECORD))
    assert run(target) == 2
    assert places(tmp_path) == ALL
    assert run(target) == 0
    assert places(tmp_path) == ALL
    entries = Ledger(target).entries()
    assert [one.start for one in entries[1:]] == [one.end for one in entries[:-1]]
    assert sum(one.rows for one in entries) == len(ALL)
    assert not Ledger(target).check()


def test_a_run_killed_at_any_change_leaves_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody else is at it who would be waited for.
    monkeypatch.setattr(ledger_module, "_RENAMING_S", 0.0)
    changes = KilledAt(str(tmp_path / "count"), 1 << 30)
    run(changes)
    total = (1 << 30) - changes.left
    assert total > 40
    for at in range(1, total + 1):
        root = tmp_path / str(at)
        with pytest.raises(Killed):
            run(KilledAt(str(root), at))
        # Decided ranges are there whole for who reads by the ledger, wherever their files are.
        assert by_ledger(Target(str(root))) == decided(Target(str(root))), at
        run(Target(str(root)))
        assert places(root) == by_ledger(Target(str(root))) == ALL, at
        assert not Ledger(Target(str(root))).check()
        assert not list(root.glob("_archive/staging/*"))


def test_runs_killed_again_and_again_leave_every_row_once(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    for trial in range(20):
        root = tmp_path / str(trial)
        for _ in range(6):
            try:
                run(KilledAt(str(root), dice.randrange(1, 60)), dice.randrange(LOG_END))
            except Killed:
                continue
        run(Target(str(root)))
        assert places(root) == ALL, trial


def test_who_reads_while_files_are_renamed_waits_for_the_end_of_it(tmp_path: Path) -> None:
    run(Target(str(tmp_path)))
    done = sorted(tmp_path.glob("_archive/done/*"))[-1]
    entry = Ledger(Target(str(tmp_path))).entries()[-1]
    back = [(tmp_path / file.place, tmp_path / file.aside) for file in entry.files]
    done.unlink()
    for place, aside in back:
        aside.parent.mkdir(parents=True)
        place.rename(aside)

    class Renaming(Target):
        """Another process goes on as soon as somebody has looked."""

        def sizes(self, path: str) -> dict[str, int]:
            found = super().sizes(path)
            if path == "_archive/done" and not done.exists():
                for place, aside in back:
                    aside.rename(place)
                done.touch()
            return found

    assert by_ledger(Renaming(str(tmp_path))) == ALL


def test_who_comes_second_gives_way(tmp_path: Path) -> None:
    target = Target(str(tmp_path))
    first = writer(target)

    def overtaken(start: int, end: int, aside: str) -> StagedRows | None:
        staged = first(start, end, aside)
        Ledger(Target(str(tmp_path))).archive(start, end, first)
        return staged

    with pytest.raises(LedgerError, match="another run"):
        Ledger(target).archive(0, 1000, overtaken)
    assert places(tmp_path) == list(range(0, 1000, RECORD))


def test_a_file_that_was_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_RENAMING_S", 0.0)
    target = Target(str(tmp_path))
    run(target)
    gone = next(tmp_path.glob("topic=t0/*.parquet"))
    gone.unlink()
    assert [line.split()[0] for line in Ledger(target).check()] == [f"topic=t0/{gone.name}"]
    for done in tmp_path.glob("_archive/done/*"):
        done.unlink()
    for read in (Ledger(target).recover, Ledger(target).files):
        with pytest.raises(LedgerError, match="removed from outside"):
            read()
    with pytest.raises(LedgerError, match="it is no archive"):
        Ledger(Target(str(tmp_path / "topic=t0"))).files()


def test_a_ledger_with_a_hole_is_refused(tmp_path: Path) -> None:
    target = Target(str(tmp_path))
    run(target)
    sorted(tmp_path.glob("_archive/entries/*"))[1].unlink()
    with pytest.raises(LedgerError, match="an entry in _archive/entries is gone"):
        Ledger(target).entries()
    sorted(tmp_path.glob("_archive/entries/*"))[0].write_text("{")
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger(target).entries()


PAYMENTS = ArchiveSelection(("Payments",), None, 1_700_000_000_000)


def test_a_selection_is_in_each_entry_and_programs_before_it_refuse_them(tmp_path: Path) -> None:
    target = Target(str(tmp_path))
    for place in range(0, 3000, 1000):
        made = Ledger(target, PAYMENTS).archive(place, place + 1000, nothing)
        assert made is not None
    found = Ledger(target).entries()
    assert [one.selection for one in found] == [PAYMENTS] * 3
    assert [(one.rows, one.files) for one in found] == [(0, ())] * 3
    assert not Ledger(target).check()
    texts = [path.read_text() for path in tmp_path.glob("_archive/entries/*")]
    assert all('"version": 2' in text for text in texts)
    Ledger(target, PAYMENTS).check_selection("x")
    with pytest.raises(JobFailed, match=r"x holds messages of Payments stored before 2023-11-14T22:"
                       r"13:20\.000\+00:00; this run is for all messages:") as caught:  # fmt: skip
        Ledger(target).check_selection("x")
    assert caught.value.code == 2


def nothing(start: int, end: int, aside: str) -> StagedRows:
    return StagedRows(end, 0, 0, {})


def test_an_archive_from_before_selections_goes_on_with_all_messages(tmp_path: Path) -> None:
    target = Target(str(tmp_path))
    run(target, 1500)
    text = next(tmp_path.glob("_archive/entries/*")).read_text()
    assert '"version": 1' in text
    assert "selection" not in text
    Ledger(target).check_selection("x")
    with pytest.raises(JobFailed, match="x holds all messages; this run is for messages of Pay"):
        Ledger(target, PAYMENTS).check_selection("x")
    # Where nothing is yet, anything may be.
    Ledger(Target(str(tmp_path / "new")), PAYMENTS).check_selection("x")


@pytest.mark.parametrize(
    ("archived_to", "range_bytes", "ranges", "missed"),
    [
        (None, 2000, ((0, 2000), (2000, 4000), (4000, 5000)), None),
        (None, 1, tuple(SEGMENTS), None),
        (1500, 2000, ((1500, 3000), (3000, 5000)), None),
        (5000, 2000, (), None),
    ],
)
def test_ranges_go_through_the_segments(
    archived_to: int | None,
    range_bytes: int,
    ranges: tuple[tuple[int, int], ...],
    missed: tuple[int, int] | None,
) -> None:
    work = plan_ranges(archived_to, SEGMENTS, range_bytes)
    assert (work.ranges, work.missed) == (ranges, missed)


def test_what_retention_deleted_before_it_was_archived_is_said() -> None:
    assert plan_ranges(1500, SEGMENTS[3:], 9000).missed == (1500, 3000)
    assert plan_ranges(None, SEGMENTS[3:], 9000).missed is None
    assert plan_ranges(3000, SEGMENTS[3:], 9000).missed is None
    assert plan_ranges(0, [], 1).ranges == ()
