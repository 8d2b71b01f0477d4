"""Opens a state of the disk with the real store and says what came of it, without judging."""

from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee.config.model import Settings
from aerobee.protocol.message.record import decode_record
from aerobee.store.disk.files import Clock
from aerobee.store.segments.results import GetStatus
from tests.sim.disk.crash_model import State
from tests.sim.disk.memory_files import MemoryFiles
from tests.sim.storage.history import Queue
from tests.sim.storage.stepped_store import SteppedStore
from tests.unit.store.support import message

ROOT = "/simulated"


@dataclass(slots=True)
class QueueView:
    """A queue as a consumer sees it: (queue offset, record) in the order of the pulls."""

    min_offset: int
    max_offset: int
    pulled: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """The result of a start on a state."""

    error: Exception | None = None
    log_end: int = 0
    queues: dict[Queue, QueueView] = field(default_factory=dict)
    # (topic, key) to the log offsets that a query gave.
    hits: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    # Queue offset that the next message of a queue got.
    next_offsets: dict[Queue, int] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    # The disk right after the start, and after a second start on that: the process killed, the
    # power cut, the derived files taken away.
    image: State = field(default_factory=dict)
    closed_clean: bool = False
    again: State = field(default_factory=dict)
    after_cut: State = field(default_factory=dict)
    rebuilt: State = field(default_factory=dict)


class Machine(NamedTuple):
    """The surroundings that a start needs beside the disk."""

    settings: Settings
    clock: Clock
    boot: str


def recover(state: State, machine: Machine, keys: list[tuple[str, str]]) -> Outcome:
    """Start on the state, read all, start again on what that left, rebuild the derived files."""
    later = machine._replace(boot=machine.boot + ", later")
    outcome = Outcome()
    try:
        store, files = start(state, machine)
        try:
            look(store, outcome, keys)
            outcome.image = files.image()
            put_one_each(store, outcome)
            outcome.closed_clean = store.close()
        finally:
            store.abandon()
        outcome.again = started_image(outcome.image, machine)
        outcome.after_cut = started_image(outcome.image, later)
        outcome.rebuilt = started_image(without_derived(outcome.image), machine)
    except Exception as error:  # noqa: BLE001 - whatever it is, the store did not open
        outcome.error = error
    return outcome


def start(state: State, machine: Machine) -> tuple[SteppedStore, MemoryFiles]:
    """The store opened on a disk of that state."""
    files = MemoryFiles(ROOT, state, machine.boot)
    return SteppedStore.open(machine.settings, files, machine.clock), files


def started_image(state: State, machine: Machine) -> State:
    """The disk after a start on that state."""
    store, files = start(state, machine)
    try:
        return files.image()
    finally:
        store.abandon()


def without_derived(image: State, root: str = ROOT) -> State:
    """The disk without consume queues and index."""
    derived = (f"{root}/consumequeue", f"{root}/index")
    return {path: data for path, data in image.items() if not path.startswith(derived)}


def look(store: SteppedStore, outcome: Outcome, keys: list[tuple[str, str]]) -> None:
    """Read everything that can be read."""
    outcome.log_end = store.written
    outcome.gaps = [(gap.start, gap.end) for gap in store.recovery.gaps]
    for topic, queue_id in store.queues():
        outcome.queues[topic, queue_id] = pull_all(store, topic, queue_id)
    for topic, key in keys:
        records = store.search.query(topic, key, 64, 0, 1 << 62).records
        outcome.hits[topic, key] = {decode_record(record).log_offset for record in records}


def pull_all(store: SteppedStore, topic: str, queue_id: int) -> QueueView:
    """Pull a queue from its first offset on, as a consumer does."""
    view = QueueView(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
    offset = view.min_offset
    while offset < view.max_offset:
        result = store.reader.get(topic, queue_id, offset, 32)
        for memory in result.views:
            data = bytes(memory)
            while data:
                size = int.from_bytes(data[:4], "big")
                view.pulled.append((int.from_bytes(data[20:28], "big"), data[:size]))
                data = data[size:]
        result.release()
        moving = (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_FOUND_NULL)
        if result.status not in moving or result.next_offset <= offset:
            break
        offset = result.next_offset
    return view


def put_one_each(store: SteppedStore, outcome: Outcome) -> None:
    """Life goes on: a message more for each queue, visible under the offset it was told."""
    for topic, queue_id in store.queues():
        result = store.log.put(message(b"after the crash", topic, queue_id))
        outcome.next_offsets[topic, queue_id] = result.queue_offset
    store.sync_log()
    store.dispatch()
