"""A writer's bound is its reader's, for every table of ours: the next start reads what this run
wrote, however many values it has and whatever stands in its texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.delay.delivery_progress import Cursor, DelayProgress, Done, Past, TimerProgress
from aerobee.broker.staging.finished import FinishedBatches, Forgotten, LastBatch, parts_bytes
from aerobee.broker.staging.finished_batches import StageFile
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.filters import ConsumerFilter, FilterTable
from aerobee.config.model import Settings
from aerobee.protocol.frames import fastjson
from aerobee.protocol.headers.stages import StagePart
from aerobee.summed_log import SummedLog
from tests.crash.damage import tables
from tests.unit.store.support import marks_at

I64_MAX = (1 << 63) - 1
#: Characters that JSON, Java and text files treat each in its own way.
HARD = "\"\\\t\n\r\x00\x1f\x7f\x85\u2028\u2029\ufeff'{}[]:,@%|" + "\U0001f680" + "x" * 200


@pytest.fixture(autouse=True)
def few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of values in a request; a test that writes a million takes long."""
    monkeypatch.setattr(fastjson.loads, "__defaults__", (5,))
    with pytest.raises(ValueError, match="more than 5 values"):
        fastjson.loads(b"[1,2,3,4,5,6]")


def test_tables_of_topics_groups_offsets_and_keys(tmp_path: Path) -> None:
    tables.fill(tmp_path)
    for name, load in tables.LOADERS.items():
        assert len(load(tmp_path)) >= 2, name
    assert list(tmp_path.rglob("*.damaged*")) == []


def test_filters(tmp_path: Path) -> None:
    def opened() -> FilterTable:
        file = JsonStateFile(tmp_path / "consumerFilter.json")
        settings = Settings.for_tests(filter_keep_ms=1000, sql_filter_bytes=1 << 30)
        return FilterTable(settings, file, lambda: 10)

    table = opened()
    for number in range(5):
        one = ConsumerFilter(f"T{number}", "g", "SQL92", HARD, I64_MAX, 5, (1, 2, 3), dead_ms=9)
        table._put((one.topic, one.group), one)
    table._changed = True
    changes = table.take_changes()
    assert changes is not None
    table.save(changes)
    again = opened()
    found = [again.get(f"T{number}", "g") for number in range(5)]
    assert {(one.expression, one.client_version) for one in found if one} == {(HARD, I64_MAX)}
    assert len(again) == 5


def test_delivery_progress(tmp_path: Path) -> None:
    def delays() -> DelayProgress:
        return DelayProgress(JsonStateFile(tmp_path / "delayOffset.json"), lambda: I64_MAX)

    def timer() -> TimerProgress:
        return TimerProgress(JsonStateFile(tmp_path / "timerProgress.json"), lambda: I64_MAX)

    progress = delays()
    for level in range(1, 40):
        progress.moved(level, I64_MAX)
    text = progress.take_changes()
    assert text is not None
    progress.save(text)
    assert delays().table() == progress.table()
    done = Done(Cursor(I64_MAX, 7), tuple(Past(n, Cursor(I64_MAX, n), n) for n in range(50)))
    place = timer()
    place.moved(done)
    text = place.take_changes()
    assert text is not None
    place.save(text)
    assert timer().done == done


@pytest.mark.parametrize("starts_over", [False, True])
def test_finished_batches(tmp_path: Path, starts_over: bool) -> None:
    def opened(finished: FinishedBatches) -> StageFile:
        file = JsonStateFile(tmp_path / "stages.json")
        return StageFile(file, finished, lambda: 3, marks_at(0))

    def nothing() -> FinishedBatches:
        return FinishedBatches(lambda: 1 << 30, lambda: 1 << 40, lambda: 0, SummedLog(lambda: 0.0))

    known = nothing()
    parts = tuple(StagePart(HARD, 1, f"{n:032x}", I64_MAX, I64_MAX, I64_MAX) for n in range(50))
    for number in range(9):
        known.put("q" * 250 + f":{number}", LastBatch(I64_MAX, I64_MAX, parts, parts_bytes(parts)))
    known.put_forgotten("gone", Forgotten(I64_MAX, 5, whole=False))
    file = opened(known)
    file._starts_over = starts_over
    changes = file.take_changes()
    assert changes is not None
    file.save(changes)
    found = nothing()
    assert opened(found).load(10) == 3
    assert (found.queries, found.forgotten) == (known.queries, known.forgotten)
    assert found.bytes == known.bytes
