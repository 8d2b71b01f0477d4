"""P16: the cost of ten million stored messages in 1,000 topics and 10,000 queues to sends and
pulls.

Two brokers of ours side by side, one on a copy of the store that starts.py makes and keeps, the
other on an empty one. Both get the same requests in turn. Memory is that of anonymous pages, at
rest after the start and after all turns; the larger difference counts.
"""

import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tests.bench.cases.restart import shape
from tests.bench.cases.starts import PARTS, Contents, make
from tests.bench.loads import LOADS
from tests.bench.report import Row, Verdict, middle, pair_of, ratios, spread
from tests.bench.servers import OurServer, running
from tests.bench.turns import Rounds, equal_requests, rounds

RATE_MIN, PROCESSOR_MIN = 0.9, 1 / 1.1
BYTES_A_QUEUE_MAX = 1_500
_LOADS = ("P2", "P11")


@dataclass(frozen=True, slots=True)
class Found:
    """Rounds by the name of the load, with the backlog before the empty store; memory."""

    contents: Contents
    rounds: dict[str, Rounds]
    bytes_a_queue: tuple[float, float]  # at rest after the start, and after all turns


def contents_of(messages: int) -> Contents:
    """The store of starts.py; in a folder of its own when it has another number of messages."""
    data = next(part for part in PARTS if part.name == "data")
    if messages == data.messages:
        return data
    what = f"{data.topics:,} topics, {data.topics * data.queues:,} queues, {messages:,} messages"
    return replace(data, name=f"data-{messages}", what=what, messages=messages)


def measure(contents: Contents, turns: int, secs: float, folder: Path, stores: Path) -> Found:
    """Makes the store below `stores` if it is not there."""
    stores.mkdir(parents=True, exist_ok=True)
    made = make(contents, stores)
    folder.mkdir(parents=True)
    backlog = folder / "store"
    # Queue files are sparse: 6 MB each, of which a few kilobytes have blocks.
    subprocess.run(["cp", "-a", "--sparse=always", made, backlog], check=True)
    full = OurServer(folder / "full", shape(), backlog)
    empty = OurServer(folder / "empty", shape())
    full.kind, empty.kind = "with a backlog", "empty"
    found: dict[str, Rounds] = {}
    with running((full, empty), folder) as both:
        differences = [anonymous_bytes(full.pid) - anonymous_bytes(empty.pid)]
        for load in (load for load in LOADS if load.name in _LOADS):
            for server in both:
                server.take_up(load)
            count = equal_requests(full, empty, load, 0, secs)
            found[load.name] = rounds(both, range(turns), load, count)
        differences.append(anonymous_bytes(full.pid) - anonymous_bytes(empty.pid))
    queues = contents.topics * contents.queues
    return Found(contents, found, (differences[0] / queues, differences[1] / queues))


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that no file is behind."""
    said = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert said is not None
    return int(said[1]) * 1024


def rows(found: Found) -> list[Row]:
    """A row for each load, and one for memory; the empty store has the place of the other."""
    lines = []
    for name, turns in found.rounds.items():
        rate, processor = ratios(turns, "rate"), ratios(turns, "processor")
        columns = [[one.messages_per_s for one in column] for column in zip(*turns, strict=True)]
        lines.append(
            Row(
                "P16",
                f"{name} with {found.contents.what}, against our own empty store",
                middle(columns[0]),
                f"{middle(columns[1])}, ours, empty",
                spread(rate),
                [_verdict("rate", rate, RATE_MIN), _verdict("processor", processor, PROCESSOR_MIN)],
                pair_of(turns, "cpu_us", 1),
                f"{spread(processor)}, empty / full",
                pair_of(turns, "p50_us", 0),
                pair_of(turns, "p99_us", 0),
            )
        )
    lines.append(
        Row(
            "P16",
            "anonymous memory for each queue of that, above the empty store",
            " B at rest, ".join(f"{one:,.0f}" for one in found.bytes_a_queue)
            + " B after the loads",
            verdicts=[
                Verdict(
                    f"at most {BYTES_A_QUEUE_MAX:,} B",
                    max(found.bytes_a_queue) <= BYTES_A_QUEUE_MAX,
                )
            ],
        )
    )
    return lines


def _verdict(figure: str, values: list[float], bound: float) -> Verdict:
    value = median(values)
    return Verdict(f"{figure} at least {bound:.2f} ({value:.2f})", value >= bound)
