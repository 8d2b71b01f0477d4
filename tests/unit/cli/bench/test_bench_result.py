"""The document under the OpenMessaging Benchmark's names, the table, the plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aerobee.cli.bench.bench_plan import BenchPlan
from aerobee.cli.bench.bench_result import COLUMNS, document, failure_rows, line, table, warnings
from aerobee.cli.bench.counts import Counts, sum_of
from aerobee.cli.bench.generator.request_frames import Payload
from aerobee.cli.bench.generator.security import Security
from aerobee.cli.bench.loads import Mode
from aerobee.cli.bench.measure import Backlog, Measurement, Second, backlog_of, end_of_second
from aerobee.cli.bench.plot import _draw_rates, check_plot, draw
from aerobee.cli.printing.output import CommandFailed

MACHINE = {"cores": 2}


def plan(**changes: Any) -> BenchPlan:
    fields: dict[str, Any] = {
        "name": "1 topic",
        "mode": Mode.END_TO_END,
        "payload": Payload(100),
        "producers": 4,
        "subscriptions": 1,
        "consumers": 2,
        "rate": 1000.0,
    }
    return BenchPlan(**{**fields, **changes})


def counts(acked: int, latency_us: int, *, failed: int = 0) -> Counts:
    made = Counts()
    made.sent, made.acked, made.acked_bytes = acked + failed, acked, acked * 100
    made.received, made.received_bytes = acked - 1, acked * 250
    made.failed = failed
    for _ in range(acked):
        made.publish.record(latency_us)
        made.delay.record(latency_us // 10)
        made.end_to_end.record(latency_us * 2)
    if failed:
        made.fail("SYSTEM_BUSY", "[too many requests]", failed)
    return made


def measured() -> Measurement:
    found = Measurement(unanswered=1)
    for number, part in enumerate((counts(1000, 1500), counts(500, 3000, failed=5))):
        elapsed_s = 1.0 if number == 0 else 0.5
        found.seconds.append(Second(1.0 + number * 0.5, elapsed_s, part, number + 1, 0.25))
        found.total.add(part)
        found.ever.add(part)
    return found


def made(found: Measurement | None = None, **changes: Any) -> dict[str, Any]:
    brokers = {"bee": {"version": "V4_9_8", "flushDiskType": "ASYNC_FLUSH"}}
    result = document(
        plan(**changes), found or measured(), brokers=brokers, machine=MACHINE, stored=1500
    )
    # The written result is JSON.
    parsed: dict[str, Any] = json.loads(json.dumps(result, allow_nan=False))
    return parsed


def test_the_document_has_the_benchmarks_names() -> None:
    result = made()
    assert (result["workload"], result["messageSize"]) == ("1 topic", 100)
    assert result["driver"].startswith("aerobee bench ")
    assert result["publishRate"] == [1000.0, 1000.0]
    assert result["publishErrorRate"] == [0.0, 10.0]
    assert result["consumeRate"] == [999.0, 998.0]
    assert result["backlog"] == [1, 2]
    for name in ("publishLatency", "publishDelayLatency", "endToEndLatency"):
        aggregated = f"aggregated{name[0].upper()}{name[1:]}"
        for suffix in ("Avg", "50pct", "75pct", "95pct", "99pct", "999pct", "9999pct", "Max"):
            assert len(result[f"{name}{suffix}"]) == 2
            assert isinstance(result[f"{aggregated}{suffix}"], float)
        assert result[f"{aggregated}Quantiles"]["100.0"] == result[f"{aggregated}Max"]


def test_latencies_are_milliseconds() -> None:
    result = made()
    assert result["publishLatencyMax"] == [1.5, 3.0]
    assert result["publishDelayLatencyMax"] == [0.15, 0.3]
    assert result["endToEndLatencyMax"] == [3.0, 6.0]
    assert result["aggregatedPublishLatencyAvg"] == pytest.approx(2.0)
    assert result["aggregatedPublishLatency50pct"] == pytest.approx(1.5, rel=0.01)
    assert result["aggregatedPublishLatencyMax"] == 3.0


def test_what_has_no_name_there_stands_apart() -> None:
    own = made()["aerobee"]
    assert own["brokers"]["bee"]["flushDiskType"] == "ASYNC_FLUSH"
    assert (own["machine"], own["loop"], own["rate"]) == (MACHINE, "open", 1000.0)
    assert own["totals"] == {
        "sent": 1505,
        "acknowledged": 1500,
        "failed": 5,
        "unanswered": 1,
        "stored": 1500,
        "received": 1498,
        "undelivered": 0,
    }
    assert own["failures"] == [
        {"code": "SYSTEM_BUSY", "requests": 5, "firstRemark": "[too many requests]"}
    ]
    assert own["secondEnds"] == [1.0, 1.5]


def test_the_document_says_what_was_secured_and_no_key() -> None:
    own = made()["aerobee"]
    assert (own["signed"], own["encrypted"]) == (False, False)
    own = made(security=Security(access_key="user", secret_key="hidden-key", use_tls=True))
    assert (own["aerobee"]["signed"], own["aerobee"]["encrypted"]) == (True, True)
    assert "hidden-key" not in json.dumps(own)


def test_pulls_have_latencies_of_their_own() -> None:
    assert "pullLatency50pct" in made(mode=Mode.PULL)
    assert "pullLatency50pct" not in made()


def test_a_measurement_without_a_second_is_a_document_too() -> None:
    result = made(Measurement(interrupted=True))
    assert result["publishRate"] == []
    assert result["aggregatedPublishLatency99pct"] == 0.0
    assert table(plan(), Measurement()) == []


def test_the_table_says_rates_and_latencies() -> None:
    rows = {row[0]: row[1:] for row in table(plan(), measured())}
    assert list(rows) == ["publish", "sent late by", "end to end"]
    assert all(len(row) == len(COLUMNS) - 1 for row in rows.values())
    assert rows["publish"][0] == "1000.0"
    assert (rows["publish"][2], rows["publish"][-1]) == ("2.000", "3.000")
    closed = [row[0] for row in table(plan(rate=None), measured())]
    assert closed == ["publish", "end to end"]
    assert failure_rows(measured()) == [("SYSTEM_BUSY", 5, "[too many requests]")]


def test_a_second_is_a_line() -> None:
    found = measured()
    assert line(plan(), found.seconds[0], warm_up=True).startswith("warm-up, publish 1,000/s")
    text = line(plan(), found.seconds[1], warm_up=False)
    assert text == (
        "  1.5 s, publish 1,000/s, receive 998/s, backlog 2, failed 5, "
        "end to end 50 % 99 % max: 6.00 6.00 6.00 ms"
    )


def test_a_second_in_which_nothing_came_has_no_latency() -> None:
    second = Second(3.0, 1.0, Counts(), 0, 0.1)
    assert line(plan(), second, warm_up=False) == "  3.0 s, publish 0/s, receive 0/s, backlog 0"


def test_what_spoils_the_figures_is_said() -> None:
    found = measured()
    assert warnings(plan(), found, 1500, 2) == ["1 messages had no answer when it ended"]
    found.unanswered = 0
    assert warnings(plan(), found, 1500, 2) == []
    [text] = warnings(plan(), found, 1499, 2)
    assert "hold 1,499 messages of 1,500 that they acknowledged" in text
    found.undelivered = 3
    assert warnings(plan(), found, None, 2) == ["3 messages were not delivered by the end"]
    found.undelivered = 0
    found.seconds[0].cpu = 0.97
    [text] = warnings(plan(processes=1), found, 1500, 2)
    assert "0.97 of a core busy" in text
    assert "give more --processes" in text


def test_counts_come_to_another_process_as_they_were() -> None:
    one, two = counts(10, 50, failed=2), counts(20, 70, failed=1)
    there = sum_of(json.loads(msgspec.json.encode([{"counts": one}, {"counts": two}])))
    assert (there.acked, there.failed, there.publish.count) == (30, 3, 30)
    assert there.failures == {"SYSTEM_BUSY": (3, "[too many requests]")}


def test_long_remarks_are_cut() -> None:
    made = Counts()
    made.fail("SYSTEM_ERROR", "x" * 10_000)
    assert len(made.failures["SYSTEM_ERROR"][1]) == 200


# The backlog of a workload


def test_a_backlog_is_built_and_drained_before_the_time_runs() -> None:
    own = plan(backlog_bytes=1 << 30, payload=Payload(1 << 14), drain_ratio=0.5, subscriptions=2)
    ever = Counts()
    backlog = Backlog(own)
    assert not backlog.is_over()
    assert backlog.step(ever) == ("pause", "consumers are held until 1 GiB wait for them")
    ever.acked, ever.received = 32_767, 0
    assert backlog_of(own, ever) == 65_534
    assert backlog.step(ever) is None
    ever.acked += 1
    order, text = backlog.step(ever) or ("", "")
    assert order == "resume"
    assert text.startswith("the backlog of 65,536 messages is there after")
    ever.received = 2 * ever.acked - 32_769
    assert backlog.step(ever) is None
    assert not backlog.is_over()
    ever.received += 1
    assert (backlog.step(ever) or ("x",))[0] == ""
    assert backlog.is_over()
    assert backlog.step(ever) is None


def test_without_a_backlog_the_time_runs_at_once() -> None:
    backlog = Backlog(plan())
    assert backlog.is_over()
    assert backlog.step(Counts()) is None


def test_a_sliver_of_a_second_belongs_to_the_second_before_it() -> None:
    assert end_of_second(10.0, None) == 10.0
    assert end_of_second(10.0, 11.0) == 10.0
    assert end_of_second(10.0, 10.4) == 10.4
    assert end_of_second(10.0, 9.7) == 9.7


# The plot


def test_a_plot_without_matplotlib_is_refused_before_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CommandFailed, match=r"pip install '\.\[plots\]'"):
        check_plot(Path("x.svg"))


def test_a_plot_of_another_kind_is_refused() -> None:
    with pytest.raises(CommandFailed, match=r"must end in \.svg, \.png, \.pdf"):
        check_plot(Path("x.gif"))


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_is_drawn_from_the_document(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{suffix}"
    draw(made(name="a $ topic"), path)
    data = path.read_bytes()
    assert b"<svg" in data if suffix == "svg" else data.startswith(b"\x89PNG")
    # A measurement that was interrupted at once draws too, with empty axes.
    draw(made(Measurement()), path)


def test_a_rate_that_is_always_the_same_has_room_above_it() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    rates = {"publishRate": [5e3, 5e3], "consumeRate": [0.0, 0.0], "publishErrorRate": [0.0, 0.0]}
    _draw_rates(axes, [1.0, 2.0], rates)
    assert axes.get_ylim() == pytest.approx((0, 5500))
