"""P20: how long a start takes on a store with many topics, queues, messages and offsets.

    python -m tests.bench.cases.starts [--runs 3] [--only our|java] [--parts data] [--dir DIR]
    [--dry]

Two stores, made once through the store's own classes and kept in DIR for the next run:

- data: 1,000 topics of 10 queues, 10 million messages with bodies of 100 B, all with a unique key;
- tables: 10,000 topics with a message each, 10 groups with an offset in each of them.

Then, in turn, starts after a clean stop, after kill -9 while idle, and after kill -9 under sends to
all queues. Java has copies of its own. Measured from the launch of the process to the first
acknowledged send, files in the page cache; beside it the processor time of the process until then.
"""

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aerobee.config.bounds.limits import raise_open_files
from aerobee.config.model import Settings
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import pack_host
from aerobee.store.message_store import MessageStore
from tests.bench.cases.restart import shape
from tests.bench.loads import CACHE
from tests.bench.report import machine, middle, ratio, replace_table
from tests.bench.servers import KINDS, to_first_send
from tests.interop.brokers import Broker
from tests.interop.kit import missing
from tests.interop.wire import Wire

_BATCH = 10
# Queues that are written in turn: no more than the store keeps files open.
_TOGETHER = 2_000
_HOST = pack_host("127.0.0.1", 10911)
# Sends under which a broker is killed, in seconds.
_LOAD_S = 1.5


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of a store: `messages` in all, the same number in each queue."""

    name: str
    what: str
    topics: int
    queues: int
    messages: int
    groups: int

    def places(self) -> list[tuple[str, int]]:
        return [(name, queue) for name in self.names() for queue in range(self.queues)]

    def names(self) -> list[str]:
        return [f"bench-{number:05}" for number in range(self.topics)]


PARTS = (
    Contents("data", "1,000 topics, 10,000 queues, 10 M messages", 1_000, 10, 10_000_000, 0),
    Contents("tables", "10,000 topics, 100,000 offsets", 10_000, 1, 10_000, 10),
)
ENDS = (("clean", "a clean stop"), ("idle", "kill -9, idle"), ("load", "kill -9 under sends"))


# --- making the stores ------------------------------------------------------------------------


def make(contents: Contents, directory: Path) -> Path:
    """The store of that name below `directory`, made if it is not there."""
    made = directory / contents.name
    if made.exists():
        return made
    new = directory / f"{contents.name}.new"
    shutil.rmtree(new, ignore_errors=True)
    begun = time.monotonic()
    fill(contents, new)
    write_tables(contents, new / "config")
    new.rename(made)
    print(f"made {contents.what} in {time.monotonic() - begun:.0f} s", flush=True)
    return made


def fill(contents: Contents, root: Path) -> None:
    """Puts the messages, in batches, queue after queue; a last round leaves each queue's newest
    message near the end of the log."""
    sizes = shape()
    settings = Settings(
        store_path=str(root),
        commit_log_segment_bytes=sizes.segment_bytes,
        consume_queue_segment_bytes=sizes.queue_segment_bytes,
        index_slots=sizes.index_slots,
        index_entries=sizes.index_entries,
        disk_warning_ratio=0.97,
    ).resolve()
    raise_open_files(16_384)
    places = contents.places()
    each = contents.messages // len(places)
    with_last = each - 1
    store = MessageStore.open(settings)
    try:
        for begin in range(0, len(places), _TOGETHER):
            together = places[begin : begin + _TOGETHER]
            for first in range(0, with_last, _BATCH):
                put(store, together, min(_BATCH, with_last - first))
            print(f"{begin + len(together)} of {len(places)} queues", flush=True)
        put(store, places, 1)
    finally:
        if not store.close():
            raise RuntimeError(f"the store in {root} was not closed in order")


_numbers: Iterator[int] = iter(range(1 << 62))


def put(store: MessageStore, places: list[tuple[str, int]], count: int) -> None:
    for number, (topic, queue_id) in enumerate(places):
        store.log.put_batch([stored_message(topic, queue_id) for _ in range(count)])
        if number % 100 == 0:
            store.dispatch()
    store.dispatch()


def stored_message(topic: str, queue_id: int) -> StoreMessage:
    key = f"7F00000100002A139A55{next(_numbers):012X}"
    return StoreMessage(
        topic,
        queue_id,
        0,
        0,
        1_700_000_000_000,
        _HOST,
        _HOST,
        0,
        0,
        b"x" * 100,
        f"UNIQ_KEY\x01{key}\x02CLUSTER\x01DefaultCluster".encode(),
        0,
        (key,),
    )


def write_tables(contents: Contents, config: Path) -> None:
    """The broker's tables, as JSON that both brokers read."""
    config.mkdir(exist_ok=True)
    topics = ",".join(
        f'"{name}":{{"order":false,"perm":6,"readQueueNums":{contents.queues},'
        f'"topicFilterType":"SINGLE_TAG","topicName":"{name}","topicSysFlag":0,'
        f'"writeQueueNums":{contents.queues}}}'
        for name in contents.names()
    )
    version = '"dataVersion":{"counter":1,"timestamp":1700000000000}'
    (config / "topics.json").write_text(f'{{{version},"topicConfigTable":{{{topics}}}}}')
    groups = [f"group-{number}" for number in range(contents.groups)]
    members = ",".join(
        f'"{name}":{{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        f'"consumeFromMinEnable":true,"groupName":"{name}",'
        f'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        f'"whichBrokerWhenConsumeSlowly":1}}'
        for name in groups
    )
    table = f'{{{version},"subscriptionGroupTable":{{{members}}}}}'
    (config / "subscriptionGroup.json").write_text(table)
    queues = ",".join(f'"{queue}":1' for queue in range(contents.queues))
    offsets = ",".join(
        f'"{name}@{group}":{{{queues}}}' for name in contents.names() for group in groups
    )
    (config / "consumerOffset.json").write_text(f'{{"offsetTable":{{{offsets}}}}}')


# --- measuring --------------------------------------------------------------------------------


def processor_to_first_send(broker: Broker) -> tuple[float, float]:
    """Starts the broker; seconds from launch to the first acknowledged send, and of processor."""
    return to_first_send(broker), processor_s(broker.pid)


def processor_s(pid: int) -> float:
    """Processor time of a process so far (proc(5), `utime` and `stime`)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def leave_behind(kind: str, root: Path, store: Path, contents: Contents, end: str) -> None:
    """A broker of that kind works on the store and is ended in that way."""
    broker = KINDS[kind](root, shape(), store)
    broker.start()
    try:
        if end == "load":
            send_everywhere(broker, contents)
        elif end == "clean":
            broker.stop()
    finally:
        broker.kill()


def send_everywhere(broker: Broker, contents: Contents) -> None:
    """Sends to all queues in turn, and kills the broker meanwhile."""
    places = contents.places()
    killer = threading.Timer(_LOAD_S, broker.kill)
    killer.start()
    try:
        with Wire(broker.address) as wire:
            while True:
                for topic, queue_id in places[::7]:
                    wire.send(topic, queue_id, b"x" * 100)
    except (ConnectionError, TimeoutError, OSError):
        killer.join()


Found = dict[tuple[str, str, str], list[tuple[float, float]]]


def measure(contents: Contents, kinds: list[str], runs: int, directory: Path) -> Found:
    found: Found = {}
    made = make(contents, directory)
    for kind in kinds:
        store = made
        if kind != "our":
            store = directory / f"{contents.name}-{kind}"
            shutil.rmtree(store, ignore_errors=True)
            # Queue files are sparse: 6 MB each, of which a few kilobytes have blocks.
            subprocess.run(["cp", "-a", "--sparse=always", made, store], check=True)
        for _ in range(runs):
            for end, what in ENDS:
                root = directory / f"run-{kind}"
                leave_behind(kind, root, store, contents, end)
                broker = KINDS[kind](root, shape(), store)
                try:
                    seconds, processor = processor_to_first_send(broker)
                    broker.wait_ready()
                    broker.stop()
                finally:
                    broker.kill()
                found.setdefault((contents.name, end, kind), []).append((seconds, processor))
                print(
                    f"{contents.name:6} {what:20} {kind:5} {seconds:6.2f} s, "
                    f"{processor:.2f} s of processor",
                    flush=True,
                )
        if store != made:
            shutil.rmtree(store)
    return found


def table(found: Found) -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"{now}, `python -m tests.bench.cases.starts {' '.join(sys.argv[1:])}`, on {machine()}.",
        "",
        "| store | started after | Aerobee | Java | ratio of times | processor, s |",
        "|---|---|---|---|---|---|",
    ]
    for contents in PARTS:
        for end, what in ENDS:
            runs = [found.get((contents.name, end, kind), []) for kind in KINDS]
            if not any(runs):
                continue
            ours, theirs = ([seconds for seconds, _ in one] for one in runs)
            cells = [f"{middle(one)} s" if one else "-" for one in (ours, theirs)]
            cells.append(ratio(ours, theirs))
            cells.append(
                " / ".join(middle([cpu for _, cpu in one]) if one else "-" for one in runs)
            )
            lines.append(f"| {contents.what} | {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="starts", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--parts", default=",".join(contents.name for contents in PARTS))
    parser.add_argument("--dir", type=Path, default=CACHE / "starts")
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    kinds = [options.only] if options.only else list(KINDS)
    if "java" in kinds and missing("java-broker") is not None:
        print("starts: without the Java broker", file=sys.stderr)
        kinds.remove("java")
    options.dir.mkdir(parents=True, exist_ok=True)
    found: Found = {}
    for contents in PARTS:
        if contents.name in options.parts.split(","):
            found |= measure(contents, kinds, options.runs, options.dir)
    text = table(found)
    if not options.dry:
        replace_table("starts", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
