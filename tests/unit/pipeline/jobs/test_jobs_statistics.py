"""Rates, retention's what-if, pacing, plots and reports, without Spark."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from aerobee.pipeline.jobs.common.job_result import JobResult, size_text, table_lines
from aerobee.pipeline.jobs.common.plots import can_draw, html_page, write_plots
from aerobee.pipeline.jobs.dlq import body_sample
from aerobee.pipeline.jobs.replay import rate_limited
from aerobee.pipeline.jobs.retention import (
    Committed,
    Loss,
    Policy,
    QueueEnds,
    SegmentFacts,
    committed_offsets,
    losses,
    outcome,
)
from aerobee.pipeline.jobs.traffic import hot_queues, rate, skew
from aerobee.protocol.frames.fastjson import JsonError

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
#: Four segments of 1000 bytes, whose last messages are 40, 30, 20 and 0 hours old.
SEGMENTS = [
    SegmentFacts(1000 * number, 1000 * (number + 1), 1000, NOW_MS - age * HOUR_MS)
    for number, age in enumerate((40, 30, 20, 0))
]


def test_rates_are_over_the_whole_time_and_in_the_busiest_minute() -> None:
    found = rate([(120_000, 60, 6000), (0, 600, 1200)])
    assert found.seconds == 180
    assert found.messages == pytest.approx(660 / 180)
    assert found.bytes == pytest.approx(40)
    assert (found.peak_messages, found.peak_bytes, found.peak_minute_ms) == (10, 100, 0)
    assert rate([]).messages == 0


def test_a_queue_with_more_than_its_share_is_hot() -> None:
    assert skew({0: 10, 1: 10, 2: 10, 3: 90}) == (4, 3, 0.75, 3.0)
    rows = [
        {"topic": topic, "queueId": number, "messages": count}
        for topic, counts in (("even", (5, 5)), ("hot", (1, 1, 98)), ("one", (7,)))
        for number, count in enumerate(counts)
    ]
    assert [(row["topic"], row["busiest"]) for row in hot_queues(rows)] == [("hot", 2)]


@pytest.mark.parametrize(
    ("policy", "gone", "begin"),
    [
        (Policy(hours=50), 0, 0),
        (Policy(hours=30), 2, 2000),
        (Policy(hours=0), 3, 3000),
        (Policy(size=4000), 0, 0),
        (Policy(size=2500), 2, 2000),
        (Policy(size=1), 3, 3000),
        (Policy(hours=35, size=3000), 1, 1000),
    ],
)
def test_whole_segments_go_oldest_first_and_never_the_last(
    policy: Policy, gone: int, begin: int
) -> None:
    found = outcome(policy, SEGMENTS, NOW_MS)
    assert (found.segments, found.freed, found.begin) == (gone, 1000 * gone, begin)
    assert found.left == 4000 - found.freed


def test_a_young_segment_keeps_older_ones_behind_it() -> None:
    turned = [SEGMENTS[2], SEGMENTS[0], SEGMENTS[3]]
    assert outcome(Policy(hours=30), turned, NOW_MS).segments == 0


def test_groups_lose_what_they_have_not_consumed() -> None:
    result = outcome(Policy(hours=30), SEGMENTS, NOW_MS)
    # 100 messages of 40 bytes from number 10 on: those below log offset 2000 are 10 to 59.
    ends = QueueEnds(10, 110, lambda log_offset: 10 + log_offset // 40)
    committed = [
        Committed("new", "t", 0, 0),
        Committed("middle", "t", 0, 50),
        Committed("near", "t", 0, 60),
        Committed("done", "t", 0, 110),
        Committed("gone", "other", 0, 0),
    ]
    found = list(losses(result, committed, lambda topic, _: ends if topic == "t" else None))
    assert found == [
        Loss("30 h", "new", "t", 0, 0, 100, 50),
        Loss("30 h", "middle", "t", 0, 50, 60, 10),
        Loss("30 h", "near", "t", 0, 60, 50, 0),
    ]


def test_offsets_are_read_as_brokers_write_them() -> None:
    text = '{"offsetTable":{"a@b@g":{0:5,1:34},"%RETRY%g@g":{0:1}},"lmqOffsetTable":{"%LMQ%q@c":7}}'
    assert list(committed_offsets(text.encode())) == [
        Committed("g", "a@b", 0, 5),
        Committed("g", "a@b", 1, 34),
        Committed("g", "%RETRY%g", 0, 1),
        Committed("c", "%LMQ%q", 0, 7),
    ]
    assert list(committed_offsets(b"[]")) == []
    with pytest.raises(JsonError):
        list(committed_offsets(b'{"offsetTable":{'))


class FakeTime:
    """A clock that waiting moves, and working a little."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.time_s = 0.0
        self.work_s = work_s

    def now(self) -> float:
        self.time_s += self.work_s
        return self.time_s

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.time_s += seconds


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_pace_is_kept_on_the_average_and_at_each_moment(size: int) -> None:
    clock = FakeTime()
    batches = [pa.RecordBatch.from_pydict({"n": list(range(size))})] * (2000 // size)
    sent, total = 0, size * (2000 // size)
    for batch in rate_limited(iter(batches), 100.0, clock.now, clock.wait):
        # Never ahead of the pace by more than one piece.
        assert sent <= 100 * clock.time_s + 10
        sent += batch.num_rows
    assert sent == total
    assert clock.time_s == pytest.approx(total / 100, abs=0.2)


def test_a_pace_does_not_make_up_for_a_slow_reader() -> None:
    clock = FakeTime()

    def slow() -> object:
        for _ in range(5):
            clock.time_s += 10
            yield pa.RecordBatch.from_pydict({"n": list(range(20))})

    moments = [clock.time_s for _ in rate_limited(slow(), 100.0, clock.now, clock.wait)]  # type: ignore[arg-type]
    assert all(b - a >= 0.099 for a, b in zip(moments[::2], moments[1::2], strict=True))


TABLES = {
    "topics": [
        {"topic": "a<b>$", "messages": 5, "bytes": 500, "sizeP50": 90, "sizeMax": 100,
         "latencyP50": 3, "latencyMax": -1},
    ],
    "tags": [{"topic": "a<b>$", "tags": None, "messages": 5, "bytes": 500}],
    "queues": [{"topic": "a<b>$", "queueId": 0, "messages": 5, "bytes": 500}],
    "hours": [
        {"hour": datetime(2026, 1, 1, hour, tzinfo=UTC), "topic": "a<b>$", "messages": 5}
        for hour in (1, 2)
    ],
    "kinds": [],
}  # fmt: skip


def test_the_page_holds_report_and_tables_and_escapes_names(tmp_path: Path) -> None:
    page = html_page(TABLES, ["rate 5 <per> second"], {})
    assert "a&lt;b&gt;$" in page
    assert "<b>" not in page
    assert "5 &lt;per&gt; second" in page
    assert "<p>nothing</p>" in page


def test_without_matplotlib_there_is_the_page_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # tests/spark/stores/test_jobs.py draws with it.
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not can_draw()
    paths = write_plots(TABLES, ["report"], str(tmp_path / "plots"))
    assert paths == [str(tmp_path / "plots" / "index.html")]
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["index.html"]


def test_reports_are_aligned_and_cut() -> None:
    rows = [{"name": f"n{number}", "count": 1000 * number} for number in range(1, 5)]
    assert table_lines("title", rows, 2) == [
        "", "title", "  NAME  COUNT", "  n1    1,000", "  n2    2,000", "  ... and 2 more",
    ]  # fmt: skip
    result = JobResult("audit")
    result.say("read", "5 records")
    result.table("none", [])
    assert result.lines == ["read      5 records"]
    assert [size_text(count) for count in (5, 1536, 3 << 40)] == ["5 bytes", "1.5 KiB", "3.0 TiB"]


def test_samples_of_bodies_are_one_line_and_printable() -> None:
    assert body_sample(b"two\nlines\x1b[0m") == "two lines [0m"
    assert body_sample(b"\xff\xfe") == "0xfffe"
    assert body_sample(("\u4e2d" * 200).encode()[:480]) == "\u4e2d" * 120 + "..."
    assert json.dumps(body_sample(b"")) == '""'
