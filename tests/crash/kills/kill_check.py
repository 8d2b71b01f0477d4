"""A store whose process was killed has lost nothing acknowledged, and has nothing twice.

`check_killed` recovers a directory in this process and says what is wrong: acknowledged messages
that are not where they were said to be (I1), messages nobody sent (I2), places given out twice
(I3, I5), queues that a rebuild from the log would make differently (I6), a second recovery that
changes bytes (I9).
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.protocol.message.record import Message
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.inspect.finding_kinds import Level
from aerobee.store.message_store import MessageStore
from tests.crash.judges.same_directory import SameDirectory
from tests.crash.kills.kill_child import COUNT, QUEUES, body_of, settings_of
from tests.unit.store.support import message, read_all, tree


@dataclass
class Said:
    """The messages that the killed process had acknowledged."""

    #: Number and log offset by (queue id, queue offset).
    acks: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    saved: int = 0
    done: bool = False

    @classmethod
    def of(cls, output: bytes) -> "Said":
        """Reads its standard output; a line that was cut off was not received by anybody."""
        said = cls()
        for line in output.splitlines(keepends=True):
            words = line.decode().split()
            if not line.endswith(b"\n"):
                break
            if words[0] == "ack":
                queue_id, queue_offset, log_offset, number = map(int, words[1:])
                said.acks[queue_id, queue_offset] = (number, log_offset)
            elif words[0] == "saved":
                said.saved = int(words[1])
            else:
                said.done = words[0] == "done"
        return said


def open_store(root: Path) -> MessageStore:
    return MessageStore.open(settings_of(root, "SYNC_FLUSH"), files=SameDirectory())


def copy(root: Path, target: Path) -> Path:
    """A copy that counts as the directory itself (`SameDirectory`)."""
    shutil.copytree(root, target)
    return target


def everything(root: Path) -> dict[str, bytes]:
    """All bytes a recovery decides about; index files by number, because their names are times."""
    files = tree(root, "commitlog") | tree(root, "consumequeue")
    for number, data in enumerate(tree(root, "index").values()):
        files[f"index {number}"] = data
    return files


def check_killed(root: Path, said: Said) -> list[str]:
    """All complaints about the directory of a killed writer."""
    again = copy(root, root.with_name("again"))
    wrong: list[str] = []
    store = open_store(root)
    if store.recovery.gaps:
        wrong.append(f"damage where there was none: {store.recovery.gaps}")
    found = [one for queue_id in range(QUEUES) for one in read_all(store, queue_id=queue_id)]
    wrong += _check_messages(found, said)
    wrong += _check_queries(store, said)
    wrong += _check_next(store, found, said)
    if not store.close():
        wrong.append("the recovered store did not close in order")
    wrong += _check_files(root)
    wrong += _check_state_file(root, said)
    wrong += _check_again(again)
    wrong += _check_rebuild(root, said)
    return wrong


def _check_messages(found: list[Message], said: Said) -> list[str]:
    wrong: list[str] = []
    there = {(one.queue_id, one.queue_offset): one for one in found}
    if len(there) != len(found):
        wrong.append("a place holds two messages")
    for place, (number, log_offset) in said.acks.items():
        one = there.get(place)
        if one is None:
            wrong.append(f"acknowledged message {number} at {place} is lost")
        elif one.body != body_of(number) or one.log_offset != log_offset:
            wrong.append(f"{place} holds another message than the acknowledged {number}")
    numbers = [int(one.body[:4]) for one in found]
    if len(set(numbers)) != len(numbers):
        wrong.append("a message is there twice")
    if any(one.body != body_of(number) for one, number in zip(found, numbers, strict=True)):
        wrong.append("a message nobody sent")
    for queue_id in range(QUEUES):
        offsets = [offset for queue, offset in there if queue == queue_id]
        if sorted(offsets) != list(range(len(offsets))):
            wrong.append(f"queue {queue_id} has gaps: {sorted(offsets)}")
    return wrong


def _check_queries(store: MessageStore, said: Said) -> list[str]:
    wrong = []
    for number, _ in list(said.acks.values())[::5]:
        if len(store.search.query("Orders", f"U{number}", 10, 0, 2**62).records) != 1:
            wrong.append(f"message {number} is not found by its key once")
    return wrong


def _check_next(store: MessageStore, found: list[Message], said: Said) -> list[str]:
    """New messages get new places."""
    wrong = []
    for queue_id in range(QUEUES):
        result = store.log.put(message(b"%04d" % (COUNT + queue_id), queue_id=queue_id))
        if (queue_id, result.queue_offset) in said.acks:
            wrong.append(f"place {result.queue_offset} of queue {queue_id} is given out again")
        if any(one.log_offset == result.log_offset for one in found):
            wrong.append(f"log offset {result.log_offset} is given out again")
    return wrong


def _check_files(root: Path) -> list[str]:
    """The findings of `aerobee store verify`, which shares no code with recovery."""
    findings = verify(settings_of(root, "SYNC_FLUSH")).findings
    return [f"{one.kind}: {one.what}" for one in findings if one.level is Level.DAMAGE]


def _check_state_file(root: Path, said: Said) -> list[str]:
    state = JsonStateFile(root / "config" / "numbers.json")
    number = state.load(json.loads, {"number": 0})["number"]
    # The save that was cut off may have come through.
    return [] if number >= said.saved else [f"the state file has {number}, saved was {said.saved}"]


def _check_again(again: Path) -> list[str]:
    """Recovered twice, with a crash between: the same bytes as once."""
    assert open_store(again).close()
    once = everything(again)
    (again / "abort").touch()
    assert open_store(again).close()
    twice = everything(again)
    shutil.rmtree(again)
    return [f"a second recovery changed {name}" for name in differing(once, twice)]


def _check_rebuild(root: Path, said: Said) -> list[str]:
    """Queues made again from the log are the ones there were; of the index the hits count, as its
    chains and presets depend on when a file was begun."""
    before = tree(root, "consumequeue")
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name, ignore_errors=True)
    store = open_store(root)
    wrong = _check_queries(store, said)
    assert store.close()
    after = tree(root, "consumequeue")
    return wrong + [f"a rebuild makes {name} differently" for name in differing(before, after)]


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Names whose content is not the same; absent and empty are."""
    return [
        name
        for name in sorted(one.keys() | other.keys())
        if one.get(name, b"").rstrip(b"\0") != other.get(name, b"").rstrip(b"\0")
    ]
