"""Messages with a time of their own become ones of delay levels; the timer goes on behind."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aerobee.broker.delay.export import ExportReport, Kept, TimerExport
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.reading.timed_messages import HOUR_MS
from tests.unit.broker.delay.test_timer import DAY_MS, Bench
from tests.unit.store.support import bodies, read_all


def exported(bench: Bench) -> tuple[ExportReport, list[Kept]]:
    """Export as the command does; the broker runs again afterwards."""
    bench.timer.close()
    kept: list[Kept] = []
    export = TimerExport(
        store=bench.store,
        done=bench.progress.done,
        now_ms=bench.clock.now_ms,
        window_ms=bench.timer_roll_window_seconds * 1000,
        listed=kept.append,
        deleted_at={name: bench.deleted.offset_of(name, 0) for name in bench.topics},
        dry_run=False,
    )
    export.run()
    bench.progress.moved(export.done(), bench.store.written)
    bench.restart()
    return export.report, kept


def test_what_is_kept_comes_at_its_time_and_what_is_exported_is_the_levels_alone(
    tmp_path: Path,
) -> None:
    """Kept ones were to be rolled within what the levels reach, which counts as done."""
    bench = Bench(tmp_path, message_delay_levels="1s 2s")
    bench.timer_roll_window_seconds = 1
    bench.send(b"done", 100)
    bench.pass_ms(200)
    near_ms, far_ms = bench.send(b"near", 1500), bench.send(b"far", 60_000)
    recalled_ms = bench.send(b"recalled", 60_000)
    bench.recall(b"recalled", recalled_ms)
    report, kept = exported(bench)
    assert (report.exported, report.kept, report.recalled) == ({2: 1}, 1, 1)
    assert [(one.topic, one.deliver_ms) for one in kept] == [("Orders", far_ms)]
    (waiting,) = read_all(bench.store, SCHEDULE_TOPIC, 1)
    assert (waiting.body, waiting.properties["DELAY"]) == (b"near", "2")
    assert waiting.store_timestamp_ms + 2000 >= near_ms

    bench.send(b"new", 1000)
    bench.pass_ms(58_000)
    assert bodies(bench.store) == [b"done", b"new"]
    bench.pass_ms(3000)
    assert bodies(bench.store) == [b"done", b"new", b"far"]
    assert exported(bench)[0] == ExportReport()
    bench.close()


@pytest.mark.parametrize("minute", [0, 10, 50])
@pytest.mark.parametrize("window_ms", [36 * HOUR_MS, 2 * HOUR_MS])
def test_what_was_exported_does_not_count_as_waiting(
    tmp_path: Path, minute: int, window_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Levels may reach any part of an hour, and messages further ahead may be rolled anywhere."""
    bench = Bench(tmp_path, message_delay_levels="1h 2h")
    bench.timer_roll_window_seconds = window_ms // 1000
    bench.clock.shift_ms += HOUR_MS - bench.clock.now_ms() % HOUR_MS + minute * 60_000
    bench.pass_ms(10)
    near = [HOUR_MS // 2, HOUR_MS, HOUR_MS, 2 * HOUR_MS - 60_000]
    far = [2 * HOUR_MS + 60_000, 2 * HOUR_MS + 360_000, 3 * HOUR_MS, 3 * DAY_MS, 6 * DAY_MS]
    for wait_ms in (*near, *far):
        bench.send(b"x", wait_ms)
    bench.recall(b"y", bench.send(b"y", HOUR_MS))
    assert bench.timer.pending() == len(near) + len(far) + 1
    report, _ = exported(bench)
    assert (sum(report.exported.values()), report.kept, report.recalled) == (4, len(far), 1)
    for _ in range(2):
        assert (bench.timer.pending(), bench.timer.recalls()) == (len(far), 0)
        bench.pass_ms(1000)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert exported(bench)[0].exported == {}
    assert "count=5 recalls=0" in caplog.text
    assert bench.timer.pending() == len(far)
    bench.send(b"new", 2 * HOUR_MS - 60_000)
    assert bench.timer.pending() == len(far) + 1
    bench.pass_ms(2 * HOUR_MS + 1000)
    assert len(bodies(bench.store)) == 1
    assert bench.timer.pending() == len(far)
    bench.close()


def test_what_is_of_a_deleted_topic_is_not_exported_into_the_one_made_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path, message_delay_levels="1s 2s")
    bench.send(b"old", 1500)
    bench.deleted.add("Orders", bench.store.written)
    bench.send(b"new", 1500)
    report, _ = exported(bench)
    assert (report.exported, report.dropped) == ({2: 1}, 1)
    (waiting,) = read_all(bench.store, SCHEDULE_TOPIC, 1)
    assert waiting.body == b"new"
    bench.close()
