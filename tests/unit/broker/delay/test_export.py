"""Messages with a time of their own become ones of delay levels; the timer goes on behind."""

from __future__ import annotations

from pathlib import Path

from aerobee.broker.delay.export import ExportReport, Kept, TimerExport
from aerobee.protocol.names import SCHEDULE_TOPIC
from tests.unit.broker.delay.test_timer import Bench
from tests.unit.store.support import bodies, read_all


def exported(bench: Bench) -> tuple[ExportReport, list[Kept]]:
    """Export as the command does; the broker runs again afterwards."""
    bench.timer.close()
    kept: list[Kept] = []
    export = TimerExport(
        bench.store,
        bench.progress.done,
        bench.clock.now_ms,
        bench.window_ms,
        kept.append,
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
    bench.window_ms = 1000
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
