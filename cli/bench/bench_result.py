"""The results: a document under the OpenMessaging Benchmark's names, and a table for people.

Lists have an element a second, all latencies are milliseconds. Two things differ from the
benchmark's own files, where they would mislead: `publishLatency` counts from when a send was due,
not from when it left, and `publishDelayLatency`, how late it left, is milliseconds too. Values
that the benchmark has no name for stand under `aerobee`.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aerobee import __version__
from aerobee.cli.bench.bench_plan import BenchPlan
from aerobee.cli.bench.counts import Counts, Histogram
from aerobee.cli.bench.loads import Mode
from aerobee.cli.bench.measure import Measurement, Second

_PERCENTILES: Final = (
    ("50pct", 50.0),
    ("75pct", 75.0),
    ("95pct", 95.0),
    ("99pct", 99.0),
    ("999pct", 99.9),
    ("9999pct", 99.99),
    ("99999pct", 99.999),
)
#: (name in the document, attribute of the counts, words for people).
LATENCIES: Final = (
    ("publishLatency", "publish", "publish"),
    ("publishDelayLatency", "delay", "sent late by"),
    ("endToEndLatency", "end_to_end", "end to end"),
    ("pullLatency", "pull", "pull"),
)
_MIB: Final = 1024 * 1024
#: Above this part of a core the result may be the generator's limit and not the broker's.
_BUSY: Final = 0.9


def document(
    plan: BenchPlan,
    found: Measurement,
    *,
    brokers: Mapping[str, Mapping[str, Any]],
    machine: Mapping[str, Any],
    stored: int | None,
) -> dict[str, Any]:
    """The whole result. `stored` is what the brokers hold of it, None if they were not asked."""
    seconds = found.seconds
    result: dict[str, Any] = {
        "workload": plan.name,
        "driver": f"aerobee bench {__version__}",
        "messageSize": plan.payload.size,
        "topics": plan.topics,
        "partitions": plan.queues,
        "producersPerTopic": plan.producers,
        "consumersPerTopic": plan.consumers,
        "publishRate": [second.rate(second.counts.acked) for second in seconds],
        "publishErrorRate": [second.rate(second.counts.failed) for second in seconds],
        "consumeRate": [second.rate(second.counts.received) for second in seconds],
        "backlog": [second.backlog for second in seconds],
    }
    for name, attribute, _ in LATENCIES:
        if attribute != "pull" or plan.mode is Mode.PULL:
            result |= _lists(name, [getattr(second.counts, attribute) for second in seconds])
            result |= _aggregated(name, getattr(found.total, attribute))
    result["aerobee"] = {
        "mode": str(plan.mode),
        "loop": "closed" if plan.rate is None else "open",
        "rate": plan.rate,
        "inFlight": plan.in_flight,
        "batch": plan.batch or 1,
        "processes": plan.processes,
        "seed": plan.seed,
        "signed": plan.security.signed,
        "encrypted": plan.security.encrypted,
        "warmUpSeconds": plan.warm_up_s,
        "measuredSeconds": found.elapsed_s,
        "interrupted": found.interrupted,
        "latencyUnit": "ms",
        "secondEnds": [second.at_s for second in seconds],
        "generatorCores": [second.cpu for second in seconds],
        "payload": {name: value for name, value in _payload(plan).items() if value is not None},
        "totals": _totals(found, stored),
        "failures": [
            {"code": name, "requests": count, "firstRemark": remark}
            for name, (count, remark) in _by_count(found.ever)
        ],
        "backlogSteps": found.backlog_text,
        "brokers": brokers,
        "machine": machine,
    }
    return result


def machine() -> dict[str, Any]:
    """This machine, on which the generator runs; the brokers' may be others."""
    return {
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "python": platform.python_version(),
    }


def _payload(plan: BenchPlan) -> dict[str, Any]:
    payload = plan.payload
    if payload.file:
        return {"file": payload.file}
    return {"pool": payload.pool, "randomBytesRatio": payload.random_ratio}


def _totals(found: Measurement, stored: int | None) -> dict[str, Any]:
    """Messages from the start on, warm-up too."""
    ever = found.ever
    return {
        "sent": ever.sent,
        "acknowledged": ever.acked,
        "failed": ever.failed,
        "unanswered": found.unanswered,
        "stored": stored,
        "received": ever.received,
        "undelivered": found.undelivered,
    }


def _lists(name: str, histograms: Sequence[Histogram]) -> dict[str, list[float]]:
    each = [_times_ms(name, one) for one in histograms]
    return {key: [times[key] for times in each] for key in _times_ms(name, Histogram())}


def _aggregated(name: str, total: Histogram) -> dict[str, Any]:
    name = aggregated(name)
    quantiles = {str(percent): us / 1000 for percent, us in total.quantiles_us().items()}
    return {**_times_ms(name, total), f"{name}Quantiles": quantiles}


def aggregated(name: str) -> str:
    """The name of a latency's figures of all seconds together."""
    return f"aggregated{name[0].upper()}{name[1:]}"


def _times_ms(name: str, histogram: Histogram) -> dict[str, float]:
    times = {f"{name}Avg": histogram.mean_us / 1000}
    for suffix, percent in _PERCENTILES:
        times[f"{name}{suffix}"] = histogram.percentile_us(percent) / 1000
    return {**times, f"{name}Max": histogram.max_us / 1000}


def _by_count(counts: Counts) -> list[tuple[str, tuple[int, str]]]:
    return sorted(counts.failures.items(), key=lambda item: (-item[1][0], item[0]))


# For people

COLUMNS: Final = (
    *("", "messages/s", "MiB/s", "avg ms", "50 %", "95 %", "99 %", "99.9 %", "99.99 %", "max"),
)


def table(plan: BenchPlan, found: Measurement) -> list[tuple[object, ...]]:
    """Rows of the closing table, for `COLUMNS`; empty when no second was measured."""
    if not found.seconds:
        return []
    elapsed_s = max(found.elapsed_s, 1e-9)

    def rates(count: str, size: str) -> tuple[str, str]:
        counted = sum(getattr(second.counts, count) for second in found.seconds)
        amount = sum(getattr(second.counts, size) for second in found.seconds)
        return f"{counted / elapsed_s:.1f}", f"{amount / elapsed_s / _MIB:.2f}"

    total = found.total
    rows: list[tuple[object, ...]] = []
    if plan.producers:
        rows.append(("publish", *rates("acked", "acked_bytes"), *_cells(total.publish)))
        if plan.rate is not None:
            rows.append(("sent late by", "", "", *_cells(total.delay)))
    if plan.mode is Mode.PULL:
        rows.append(("pull", *rates("received", "received_bytes"), *_cells(total.pull)))
    elif plan.consumes:
        row = ("end to end", *rates("received", "received_bytes"), *_cells(total.end_to_end))
        rows.append(row)
    return rows


def _cells(total: Histogram) -> tuple[str, ...]:
    times = [total.mean_us, *(total.percentile_us(one) for one in (50, 95, 99, 99.9, 99.99))]
    return tuple(f"{us / 1000:.3f}" for us in (*times, total.max_us))


def failure_rows(found: Measurement) -> list[tuple[object, ...]]:
    """Failures by the code's name: requests, and the first remark of each."""
    return [(name, count, remark) for name, (count, remark) in _by_count(found.ever)]


def line(plan: BenchPlan, second: Second, *, warm_up: bool) -> str:
    """A line about a second, for people."""
    counts = second.counts
    parts = ["warm-up" if warm_up else f"{second.at_s:5.1f} s"]
    latency, what = counts.publish, "latency"
    if plan.producers:
        parts.append(f"publish {second.rate(counts.acked):,.0f}/s")
    if plan.mode is Mode.PULL:
        latency = counts.pull
    if plan.mode is Mode.PULL or plan.consumes:
        parts.append(f"receive {second.rate(counts.received):,.0f}/s")
    if plan.consumes:
        latency, what = counts.end_to_end, "end to end"
        parts.append(f"backlog {second.backlog:,}")
    if counts.failures:
        parts.append(f"failed {counts.failed_requests:,}")
    if latency.count:
        times = [latency.percentile_us(50), latency.percentile_us(99), latency.max_us]
        shown = " ".join(f"{us / 1000:.2f}" for us in times)
        parts.append(f"{what} 50 % 99 % max: {shown} ms")
    return ", ".join(parts)


def warnings(plan: BenchPlan, found: Measurement, stored: int | None, cores: int) -> list[str]:
    """Warnings that a reader of the figures must know, one sentence each."""
    told = []
    acked = found.ever.acked
    if stored is not None and stored < acked:
        told.append(
            f"the brokers hold {stored:,} messages of {acked:,} that they acknowledged: they lose "
            "some, and their figures mean nothing"
        )
    if found.unanswered:
        told.append(f"{found.unanswered:,} messages had no answer when it ended")
    if found.undelivered and not found.interrupted:
        told.append(f"{found.undelivered:,} messages were not delivered by the end")
    busiest = max((second.cpu for second in found.seconds), default=0.0)
    if busiest > _BUSY:
        more = "give more --processes" if plan.processes < cores else "this machine has no more"
        told.append(
            f"the generator kept {busiest:.2f} of a core busy in one process: it may have been the "
            f"limit ({more})"
        )
    return told
