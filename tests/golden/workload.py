"""A recorded workload: stores written, damaged, recovered, scrubbed, rebuilt, repaired, cut.

    python -m tests.golden.workload DIR [--seed N] [--damages N] [--kinds ...] > FILE

writes stores below DIR, a new or empty directory, and prints the SHA-256 of every file of every
store after every step, with what recovery, audit and scrub say of it. The clock stands where the
workload sets it and all choices come from the seed, so two states of the code that treat files
alike print the same lines: `diff` of the two outputs shows what a change means for files. Lines
that begin with `says` are reports, the others are files.

Left out is what differs between two runs of the same code: identity and clock in the offsets file
(inode, boot id, time since the boot), the content of `lock`, and segments that hold nothing yet,
which are made ahead on a thread of its own.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from aerobee.store.at_rest.audit.dump import Dump, DumpFilter
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import rebuild
from aerobee.store.at_rest.repair.repair import plan_repair, repair
from aerobee.store.at_rest.repair.truncate import plan_cut, truncate
from aerobee.store.background.scrub import scrub
from aerobee.store.errors import StoreError
from aerobee.store.inspect.audit_report import Report
from aerobee.store.message_store import MessageStore
from tests.unit.store.at_rest.audit_support import OFFSETS, TOPICS
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    Hours,
    retention_settings,
    run,
    settle,
)
from tests.unit.store.support import (
    ManualClock,
    adopt,
    as_copy,
    flip,
    message,
    read_all,
    small_settings,
)

POOL: dict[str, object] = {
    "transient_pool_enabled": True,
    "transient_pool_buffers": 3,
    "flush_disk_type": "ASYNC_FLUSH",
}
KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "sealed": {"append_property_crc": True, "verify_property_crc": True},
    "multi": {"multi_dispatch": True, "lmq_enabled": True},
    "ext": {"consume_queue_ext_enabled": True, "consume_queue_ext_segment_bytes": 460},
    "ext-multi": {
        "consume_queue_ext_enabled": True,
        "consume_queue_ext_segment_bytes": 460,
        "multi_dispatch": True,
    },
    "pool": POOL,
}
SCRUBBED: dict[str, object] = {"scrub_bytes_per_second": 1 << 40}
LISTED = {"INNER_MULTI_DISPATCH": "%LMQ%a,other,%LMQ%b"}


def put_some(store: MessageStore, clock: ManualClock, chance: random.Random, count: int) -> None:
    """Messages of all kinds, dispatched now and then."""
    for number in range(count):
        clock.time_ms += chance.choice((0, 1, 700, 1500))
        queue_id = chance.randrange(3)
        keys = {"unique": f"U{clock.time_ms}-{number}", "keys": chance.choice(("", "a", "a b"))}
        tags = chance.choice(("", "T1", "T2", "\u6807\u7b7e"))
        body = bytes(chance.randrange(256) for _ in range(chance.choice((0, 9, 60, 300))))
        kind = chance.randrange(12)
        if kind == 0:
            store.log.put(message(body, "RMQ_SYS_TRANS_HALF_TOPIC", tags=tags, sys_flag=4, **keys))
        elif kind == 1:
            later = {"DELAY": str(chance.randrange(1, 5))}
            store.log.put(message(body, "SCHEDULE_TOPIC_XXXX", queue_id, more=later, **keys))
        elif kind == 2:
            store.log.put(message(body, "Listed", queue_id, tags=tags, more=LISTED, **keys))
        elif kind == 3:
            one = message(body, "Orders", queue_id, tags=tags, **keys)
            store.log.put_batch([one, message(b"1", "Orders", queue_id, unique="B"), one, one])
        elif kind == 4:
            store.log.put(message(body, "Six", born_host=bytes(20), sys_flag=16, tags=tags, **keys))
        else:
            topic = chance.choice(("Orders", "Orders", "Letters"))
            store.log.put(message(body, topic, queue_id, tags=tags, **keys))
        if chance.random() < 0.2:
            commit(store)
            store.dispatch()
    commit(store)
    store.dispatch()


def commit(store: MessageStore) -> None:
    """Wait until all is in the files, so that a dispatch depends on no thread of a pool."""
    store.request_flush()
    deadline = time.monotonic() + 20
    while store.committed < store.written:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def make(root: Path, chance: random.Random, **changes: object) -> None:
    """Two lives: a whole life, and a life that is killed (`<root>-killed`) before it is stopped."""
    clock = ManualClock()
    store = MessageStore.open(small_settings(root, **changes), clock=clock)
    put_some(store, clock, chance, 70)
    store.delete_topic("Letters")
    put_some(store, clock, chance, 20)
    assert store.close()
    config = root / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text(TOPICS)
    (config / "consumerOffset.json").write_text(OFFSETS)
    shutil.copytree(root, f"{root}-stopped")
    adopt(Path(f"{root}-stopped"))
    store = MessageStore.open(
        small_settings(root, flush_interval_ms=600_000, **changes), clock=clock
    )
    put_some(store, clock, chance, 40)
    for number in range(4):
        store.log.put(message(b"not dispatched", unique=f"N{number}"))
    commit(store)
    killed = Path(f"{root}-killed")
    shutil.copytree(root, killed)
    as_copy(killed)
    adopt(killed)
    drop_spares(killed)
    assert store.close()


def drop_spares(root: Path) -> None:
    """Segments that were made ahead, or not yet: the next one is made on a thread of its own."""
    paths = sorted((root / "commitlog").iterdir())
    while paths and not paths[-1].read_bytes().strip(b"\0"):
        paths.pop().unlink()


# --- damage -----------------------------------------------------------------------------------


def files_below(root: Path, folder: str) -> list[Path]:
    return sorted(path for path in (root / folder).rglob("*") if path.is_file())


def record_places(root: Path) -> list[tuple[Path, int, int]]:
    """(segment file, position, size) of the records, by their magic and size."""
    found = []
    for path in files_below(root, "commitlog"):
        data, position = path.read_bytes(), 0
        while data[position + 4 : position + 8] == b"\xda\xa3\x20\xa7":
            size = int.from_bytes(data[position : position + 4], "big")
            found.append((path, position, size))
            position += size
    return found


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip_record(root: Path, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 2, 4))):
        path, position, size = chance.choice(record_places(root))
        at = chance.choice((*range(0, 44, 3), 7, 23, 80, 84, 87, 88, chance.randrange(size)))
        flip(path, position + min(at, size - 1), 1 << chance.randrange(8))
    return "flip in the log"


def forged(root: Path, chance: random.Random) -> str:
    """A few bytes in the middle of the log that are a sound record of another place."""
    places = record_places(root)
    path, position, size = chance.choice(places[3:])
    other, at, length = chance.choice(places)
    overwrite(path, position + size // 2, other.read_bytes()[at : at + length][: size // 2])
    return "piece of another record in the log"


def zero_log(root: Path, chance: random.Random) -> str:
    path, position, _ = chance.choice(record_places(root))
    start = position // 512 * 512
    overwrite(path, start, bytes(chance.choice((512, 1024))))
    return "zeros in the log"


def junk_log(root: Path, chance: random.Random) -> str:
    places = record_places(root)
    path, position, size = chance.choice(places)
    overwrite(path, position, b"\xaa" * (size + chance.randrange(200)))
    return "junk in the log"


def torn(root: Path, chance: random.Random) -> str:
    path, position, size = record_places(root)[-1]
    at = position + chance.randrange(1, size)
    overwrite(path, at, bytes(path.stat().st_size - at))
    return "torn end"


def flip_unit(root: Path, chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 3))):
        paths = files_below(root, "consumequeue")
        path = chance.choice(paths)
        flip(path, chance.randrange(path.stat().st_size), 1 << chance.randrange(8))
    return "flip in queues"


def wipe_units(root: Path, chance: random.Random) -> str:
    path = chance.choice(files_below(root, "consumequeue"))
    first = chance.randrange(8)
    blank = (bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)) if chance.random() < 0.5 else bytes(20)
    overwrite(path, first * 20, blank * chance.randrange(1, 10 - first))
    return "units wiped"


def lose_queue(root: Path, chance: random.Random) -> str:
    if chance.random() < 0.5:
        chance.choice(files_below(root, "consumequeue")).unlink()
        return "queue file gone"
    shutil.rmtree(chance.choice(sorted((root / "consumequeue").glob("*/*"))))
    return "queue gone"


def swap_queues(root: Path, chance: random.Random) -> str:
    one, other = chance.sample(files_below(root, "consumequeue"), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return "queue files swapped"


def flip_index(root: Path, chance: random.Random) -> str:
    path = chance.choice(files_below(root, "index"))
    flip(path, chance.randrange(1000), 1 << chance.randrange(8))
    return "flip in the index"


def lose_index(root: Path, chance: random.Random) -> str:
    paths = files_below(root, "index")
    (paths[-1] if chance.random() < 0.5 else chance.choice(paths)).unlink()
    return "index file gone"


def lose_offsets(root: Path, chance: random.Random) -> str:
    (root / "offsets").unlink()
    if chance.random() < 0.5:
        shutil.rmtree(root / "consumequeue")
        return "offsets and queues gone"
    return "offsets gone"


def no_damage(_root: Path, _chance: random.Random) -> str:
    return "nothing"


Damage = Callable[[Path, random.Random], str]
TO_LOG: tuple[Damage, ...] = (
    *(no_damage, no_damage, flip_record, flip_record, flip_record),
    *(zero_log, junk_log, torn, forged),
)
TO_DERIVED: tuple[Damage, ...] = (
    *(no_damage, no_damage, flip_unit, flip_unit, wipe_units, lose_queue, swap_queues),
    *(flip_index, lose_index, lose_offsets),
)


def swap_segments(root: Path, chance: random.Random) -> str:
    one, other = chance.sample(files_below(root, "commitlog"), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return "segments swapped"


def lose_segment(root: Path, chance: random.Random) -> str:
    chance.choice(files_below(root, "commitlog")[:-1]).unlink()
    return "segment gone"


def shorten_segment(root: Path, chance: random.Random) -> str:
    path = chance.choice(files_below(root, "commitlog"))
    os.truncate(path, chance.randrange(1, path.stat().st_size))
    return "segment cut short"


TO_SEGMENTS: tuple[Damage, ...] = (swap_segments, lose_segment, shorten_segment)


# --- what is done to stores, and what is printed of it ----------------------------------------


def show_files(name: str, root: Path) -> None:
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        if not path.is_file() or place.name == "lock":
            continue
        data = path.read_bytes()
        if place.name == "offsets":
            values = json.loads(data.partition(b"\n")[0])
            del values["identity"], values["clock"]
            data = json.dumps(values, sort_keys=True).encode()
        elif place.parts[0] == "commitlog" and not data.strip(b"\0"):
            continue
        print(name, place, hashlib.sha256(data).hexdigest())


def say(name: str, root: Path, *values: object) -> None:
    text = " ".join(map(str, values)).replace(str(root), "ROOT")
    print("says", name, text.replace("\n", " "))


def show_report(name: str, root: Path, report: Report) -> None:
    for gap in report.gaps:
        say(name, root, "gap", tuple(gap))
    for finding in report.findings:
        say(name, root, tuple(finding))
    counts = vars(report.counts) | {"bytes_read": 0}
    say(name, root, sorted(counts.items()))
    say(name, root, report.log)


def start(name: str, root: Path, clock: ManualClock, **changes: object) -> None:
    """A start, all messages read, a scrub, an orderly stop."""
    settings = small_settings(root, **(changes | SCRUBBED))
    try:
        store = MessageStore.open(settings, clock=clock)
    except StoreError as error:
        say(name, root, "refused", error)
        return
    recovery = vars(store.recovery) | {"seconds": 0}
    say(name, root, sorted(recovery.items()))
    worker, repairs = store._scrub, store._queue_repair
    assert worker is not None
    while True:
        quiet = worker.requests.idle and store.stats.scrub_passes > 0
        store.repair_queues()
        if quiet and worker.requests.idle and repairs._work is None and not repairs._findings:
            break
        time.sleep(0.001)
    say(name, root, store.stats.repaired_entries, store.stats.damage_found, store.known_gaps)
    say(name, root, "unchecked", store.unchecked_bytes)
    for topic, queue_id in sorted(store.queues()):
        found = [one.log_offset for one in read_all(store, topic, queue_id)]
        say(name, root, topic, queue_id, found)
    say(name, root, "closed", store.close())
    show_files(name, root)


def audited(name: str, root: Path, clock: ManualClock, **changes: object) -> None:
    show_report(name, root, verify(small_settings(root, **changes), clock=clock))
    dump = Dump(small_settings(root, **changes))
    try:
        for what, listed in (
            ("messages", dump.messages(DumpFilter())),
            ("units", dump.queue_entries(DumpFilter())),
            ("entries", dump.entries(DumpFilter())),
        ):
            data = "\n".join(str(tuple(one)) for one in listed).replace(str(root), "ROOT")
            say(name, root, what, hashlib.sha256(data.encode()).hexdigest())
    finally:
        dump.close()


def at_rest(root: Path, clock: ManualClock, **changes: object) -> StoreAtRest:
    return StoreAtRest(small_settings(root, **changes), (), clock=clock)


def save_table(path: str, content: object) -> None:
    Path(path).write_text(json.dumps(content, sort_keys=True))


def tried(name: str, root: Path, work: Callable[[], object]) -> None:
    try:
        say(name, root, work())
    except (StoreError, OSError) as error:
        say(name, root, "refused", type(error).__name__, error)
    show_files(name, root)


def rebuilt(name: str, root: Path, clock: ManualClock, **changes: object) -> None:
    def work() -> object:
        with at_rest(root, clock, **changes) as rest:
            report = rebuild(rest)
        report.seconds = 0
        return report

    tried(name, root, work)


def repaired(name: str, root: Path, clock: ManualClock, **changes: object) -> None:
    def work() -> object:
        with at_rest(root, clock, **changes) as rest:
            plan = plan_repair(rest)
            say(name, root, plan.impossible, [(s.what, s.keeps, s.loses) for s in plan.steps])
            if not plan.impossible:
                repair(rest, plan, save_table)
        return plan.filled

    tried(name, root, work)


def cut(
    name: str, root: Path, chance: random.Random, clock: ManualClock, **changes: object
) -> None:
    places = record_places(root)
    if not places:
        return
    path, position, _ = chance.choice(places)

    def work() -> object:
        with at_rest(root, clock, **changes) as rest:
            planned = plan_cut(rest, at=int(path.name) + position)
            truncate(rest, planned, save_table)
        return planned

    tried(name, root, work)


def damaged_stores(directory: Path, kind: str, chance: random.Random, count: int) -> None:
    changes = KINDS[kind]
    for number in range(count):
        lived = chance.choice(("stopped", "killed", "killed", "cut-off"))
        base = directory / f"{kind}-{'stopped' if lived == 'stopped' else 'killed'}"
        scene = directory / f"{kind}-{number}"
        name = f"{kind}-{number}"
        image = scene / "image"
        shutil.copytree(base, image)
        if (image / "abort").exists():
            as_copy(image)
        adopt(image, other_boot=lived == "cut-off")
        kinds = (TO_LOG, TO_DERIVED, TO_SEGMENTS if chance.random() < 0.2 else (no_damage,))
        done = [chance.choice(damages)(image, chance) for damages in kinds]
        say(name, image, lived, done)
        boot = {"other_boot": True} if lived == "cut-off" else {}
        places = []
        for step in ("audit", "start", "rebuild", "repair", "cut"):
            target = scene / step
            shutil.copytree(image, target)
            if (target / "abort").exists():
                as_copy(target)
            if (target / "offsets").exists():
                adopt(target, **boot)
            places.append(target)
        clock = ManualClock()
        clock.time_ms += 10**9
        audited(f"{name}/audit", places[0], clock, **changes)
        start(f"{name}/start", places[1], clock, **changes)
        rebuilt(f"{name}/rebuild", places[2], clock, **changes)
        repaired(f"{name}/repair", places[3], clock, **changes)
        audited(f"{name}/repair", places[3], clock, **changes)
        cut(f"{name}/cut", places[4], chance, clock, **changes)
        shutil.rmtree(scene)


def retention(directory: Path, chance: random.Random) -> None:
    """Old segments go, and what queues and index say of them."""
    root, clock = directory / "retention", Hours()
    store = MessageStore.open(
        retention_settings(root, delete_hours=";".join(map(str, range(24)))), clock=clock
    )
    put_some(store, clock, chance, 60)
    settle(store)
    clock.time_ms += 96 * HOUR_MS
    put_some(store, clock, chance, 40)
    settle(store)
    clock.time_ms += 24 * HOUR_MS
    run(store)
    say("retention", root, store.min_log_offset, sorted(store.queues()))
    assert store.close()
    show_files("retention", root)
    audited("retention", root, clock)


def main() -> None:
    parser = argparse.ArgumentParser(description="a recorded workload, for comparing two states")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--damages", type=int, default=24, help="damaged stores of each kind")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS], help="only these kinds of stores")
    arguments = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    scrub.FIRST_AFTER_S = 0.0
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    for kind in arguments.kinds:
        changes = KINDS[kind]
        chance = random.Random(f"{arguments.seed} {kind}")
        root = directory / kind
        make(root, chance, **changes)
        show_files(kind, root)
        audited(kind, root, ManualClock(), **changes)
        damaged_stores(directory, kind, chance, arguments.damages)
    retention(directory, random.Random(arguments.seed))


if __name__ == "__main__":
    main()
