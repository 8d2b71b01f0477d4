"""Runs one case and says what is wrong with its end; an empty list when nothing is.

It judges each start: nothing that was not stored is served (I2); each missing message is missing
for a reason that was reported; a second recovery gives the same bytes (I9); queues and index made
again from the log serve the same. The message numbers go on behind the old ones (I3).
"""

import contextlib
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.repair import plan_repair, repair
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import GetStatus
from tests.crash.damage.case import NOBODY, Case, Heard
from tests.crash.damage.config_judge import ConfigJudge
from tests.crash.damage.kinds.log_cases import mark_of
from tests.crash.damage.originals import (
    COUNT,
    LINK,
    SEGMENT,
    UNDISPATCHED,
    Original,
    Place,
    snapshot,
)
from tests.crash.damage.outcomes import TABLE, Outcome

FAR_MS = 2**62
_STORE_NAME = re.compile(r"[0-9]{17}([0-9]{3})?", re.ASCII)
#: The settings that `verify` takes as given.
GIVEN = ("commit_log_segment_bytes", "consume_queue_segment_bytes", "index_slots", "index_entries")
#: Total size and queue offset at the start of a record.
_SIZE_AND_OFFSET = struct.Struct(">i16xq")


@dataclass
class Found:
    """The result of a start: served records by place, ends of the queues, reports."""

    served: dict[Place, bytes] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    keys: dict[str, list[bytes]] = field(default_factory=dict)
    #: Found by this start; known after it and a scrub.
    gaps: list[tuple[int, int]] = field(default_factory=list)
    known_gaps: tuple[tuple[int, int], ...] = ()
    log_end: int = 0
    said: str = ""
    refusal: str = ""


def read_raw(store: MessageStore, topic: str, queue_id: int) -> dict[Place, bytes]:
    """The record bytes a consumer of the queue is sent, by the queue offset they name."""
    found: dict[Place, bytes] = {}
    offset = store.min_offset(topic, queue_id)
    while True:
        result = store.reader.get(topic, queue_id, offset, 32)
        sent = b"".join(result.views)
        position = 0
        while position < len(sent):
            size, queue_offset = _SIZE_AND_OFFSET.unpack_from(sent, position)
            found[topic, queue_id, queue_offset] = sent[position : position + size]
            position += size
        result.release()
        if result.status not in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING):
            return found
        offset = result.next_offset


def scrub_once(store: MessageStore) -> None:
    """A whole pass of the scrub and what follows from it, on this thread and without its waits."""
    scrub, repair = store._scrub, store._queue_repair
    assert scrub is not None
    # Its own thread would take a part of the pass, and go on with it after this.
    scrub.stop()
    scrub._stopping.clear()
    scrub.requests.pass_asked = True
    while (segment := scrub._next()) is not None or repair._findings or repair._work is not None:
        if segment is not None:
            scrub._scrub(segment)
        store.repair_queues()


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """This process has no rights in a `with` block."""
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def clear(folder: Path) -> None:
    """Remove all that is in a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


class StoreJudge:
    """Judges cases of one original, in `scratch`."""

    def __init__(self, original: Original, scratch: Path) -> None:
        self.original = original
        self.scratch = scratch

    def judge(self, case: Case) -> list[str]:
        """All complaints about a case."""
        root = self.scratch / "store"
        try:
            self.original.write(root)
            case.apply(root)
            with case.around(root):
                return self._judge(case, root)
        finally:
            clear(self.scratch)

    def _judge(self, case: Case, root: Path) -> list[str]:
        outcome = TABLE[case.kind]
        before = snapshot(root)
        found = self._start(root, as_nobody=case.as_nobody)
        if outcome is Outcome.REFUSED:
            wrong = self._check_refused(case, found, before, snapshot(root))
            if case.kind.startswith("log: segment") and not wrong:
                wrong += self._check_repaired(root)
            return wrong
        if found.refusal:
            return [f"refused: {found.refusal}"]
        after, _ = snapshot(root)
        wrong = self._check_served(case, outcome, found)
        wrong += self._check_numbers(case, outcome, found)
        if outcome in (Outcome.SERVED, Outcome.HEALED):
            wrong += self._check_hits(found)
        if outcome is Outcome.FEWER:
            wrong += self._check_fewer(root, found)
        if outcome is Outcome.HEALED:
            wrong += self._check_healed(after)
        wrong += self._check_again(outcome, case, root, found, after)
        wrong += self._check_rebuild(case, outcome, root, found, after)
        return wrong

    def _start(self, root: Path, *, as_nobody: bool = False) -> Found:
        """Open, read everything, close in order."""
        heard = Heard()
        with heard.listening(), nobody() if as_nobody else contextlib.nullcontext():
            return self._opened(root, heard)

    def _opened(self, root: Path, heard: Heard) -> Found:
        found = Found()
        try:
            store = self.original.open(root)
        except StoreError as error:
            found.refusal = str(error)
            return found
        try:
            scrub_once(store)
            for topic, queue_id in store.queues():
                found.served |= read_raw(store, topic, queue_id)
                found.ends[topic, queue_id] = store.max_offset(topic, queue_id)
            for one in self.original.records:
                for key in one.message.keys:
                    found.keys[key] = store.search.query(
                        one.message.topic, key, 10, 0, FAR_MS
                    ).records
            found.gaps = [(gap.start, gap.end) for gap in store.recovery.gaps]
            found.known_gaps = store.known_gaps
            found.log_end = store.recovery.log_end
        finally:
            clean = store.close()
        found.said = "\n".join([*heard.lines, store.recovery.summary()])
        if not clean:
            found.said += "\nNOT CLOSED IN ORDER"
        return found

    # --- outcomes -------------------------------------------------------------------------------

    def _check_refused(self, case: Case, found: Found, before: object, after: object) -> list[str]:
        if not found.refusal:
            return [f"not refused: {len(found.served)} served, said {found.said!r}"]
        wrong: list[str] = []
        if case.file not in found.refusal:
            wrong.append(f"the refusal does not name {case.file}: {found.refusal}")
        if before != after:
            wrong.append("refused, and changed something")
        return wrong

    def _check_repaired(self, root: Path) -> list[str]:
        """A repair, if it does not say that it cannot, leaves a store that verify calls sound, that
        starts, and that serves all but as many messages as the plan has said."""
        settings, files = self.original.settings(root), self.original.system
        with Heard().listening():
            with StoreAtRest(settings, GIVEN, files) as rest:
                plan = plan_repair(rest)
                if plan.impossible:
                    return []
                repair(rest, plan, lambda _path, _content: None)
            if not verify(settings, GIVEN, files).sound:
                return ["verify does not call it sound after a repair"]
        found = self._start(root)
        if found.refusal:
            return [f"refused after a repair: {found.refusal}"]
        named = [one for one in self.original.records[: COUNT - UNDISPATCHED] if one.place]
        missing = [one.place for one in named if found.served.get(one.place) != one.data]
        if len(missing) > plan.lost:
            return [f"a repair said it loses {plan.lost} messages, {missing} are gone"]
        return []

    def _check_served(self, case: Case, outcome: Outcome, found: Found) -> list[str]:
        expected = {place: one.data for place, one in self.original.placed.items()}
        may_be_lost = self._may_be_lost(case, outcome)
        hit = {place for place, one in self.original.placed.items() if one.number in may_be_lost}
        wrong: list[str] = []
        for place, data in expected.items():
            if place in hit:
                continue
            if found.served.get(place) != data:
                what = "changed" if place in found.served else "not served"
                wrong.append(f"{place} is {what}")
        damaged_starts = {self.original.records[number].start for number in case.hit}
        for place, data in found.served.items():
            if expected.get(place) == data and (place not in hit or outcome is Outcome.CUT):
                continue
            own = int.from_bytes(data[28:36], "big")
            if outcome is not Outcome.UNGUARDED or own not in damaged_starts:
                wrong.append(f"{place} is served though it was never stored so")
        if outcome is Outcome.EXPIRED and f"log {self.original.first_kept(case.hit)}.." not in (
            found.said
        ):
            wrong.append(f"where the log begins now is not said: {found.said!r}")
        if (
            outcome is Outcome.FRONT
            and f"gone, and no deletion took it from=0 to={SEGMENT}" not in (found.said)
        ):
            wrong.append(f"the range that is gone is not named: {found.said!r}")
        if outcome in (Outcome.LOST, Outcome.CUT):
            wrong += self._check_reported(case, found)
        if case.file and case.file not in found.said:
            wrong.append(f"{case.file} is not named in {found.said!r}")
        return wrong

    def _may_be_lost(self, case: Case, outcome: Outcome) -> frozenset[int]:
        """Numbers of the records that need not be served: those hit, k for k; where the log is cut,
        also those behind the first hit record above the end that was synced for certain."""
        if outcome is not Outcome.CUT:
            return case.hit
        mark = mark_of(self.original, case.hit)
        above = [n for n in case.hit if self.original.records[n].start >= mark]
        return case.hit | frozenset(range(min(above), len(self.original.records)))

    def _check_reported(self, case: Case, found: Found) -> list[str]:
        """Each lost record lies in a reported gap, or behind the end where the log was cut."""
        wrong: list[str] = []
        for number in sorted(case.hit):
            one = self.original.records[number]
            in_gap = any(start <= one.start and one.end <= end for start, end in found.known_gaps)
            if in_gap or one.start >= found.log_end:
                continue
            if str(one.start) not in found.said:
                wrong.append(f"record {number} at {one.start} is lost and not reported")
        for start, end in found.gaps:
            for one in self.original.records:
                if one.start < end and start < one.end and one.number not in case.hit:
                    wrong.append(f"gap {start}..{end} has the sound record at {one.start}")
        return wrong

    def _check_numbers(self, case: Case, outcome: Outcome, found: Found) -> list[str]:
        """The queues end where they ended, unless the lost tail of the log was their end, or what
        is damaged is the place of a message that no unit names yet."""
        cut = found.log_end < self.original.log_end
        wrong = []
        for (topic, queue_id, offset), one in self.original.placed.items():
            if cut and one.start >= found.log_end:
                continue
            if one.number in case.hit and one.number >= COUNT - UNDISPATCHED:
                continue
            if found.ends.get((topic, queue_id), 0) <= offset:
                wrong.append(f"queue {topic}/{queue_id} ends before its message {offset}")
        return wrong

    def _check_hits(self, found: Found) -> list[str]:
        """Each key finds its message and no other (I6)."""
        return [
            f"key {key} finds {len(found.keys[key])} messages, or another one"
            for one in self.original.records
            for key in one.message.keys
            if found.keys[key] != [one.data]
        ]

    def _check_fewer(self, root: Path, found: Found) -> list[str]:
        """A key may find nothing, never another message; `verify` tells that something is wrong."""
        missed = False
        for one in self.original.records:
            for key in one.message.keys:
                if not {one.data}.issuperset(found.keys[key]):
                    return [f"key {key} finds a message without that key"]
                missed = missed or one.data not in found.keys[key]
        return self._check_noticed(root) if missed else []

    def _check_noticed(self, root: Path) -> list[str]:
        """`aerobee store verify` notices damage that a start does not."""
        sound = verify(self.original.settings(root), GIVEN).sound
        return ["verify calls it sound"] if sound else []

    def _check_healed(self, after: dict[str, bytes]) -> list[str]:
        expected = self.original.settled
        return [
            f"{name} is not as it was"
            for name in sorted(expected.keys() | after.keys())
            if is_store_file(name, ("commitlog", "consumequeue"))
            and after.get(name, b"").rstrip(b"\0") != expected.get(name, b"").rstrip(b"\0")
            and not after.get(name, b"").startswith(LINK)
        ]

    # --- once more ------------------------------------------------------------------------------

    def _check_again(
        self, outcome: Outcome, case: Case, root: Path, found: Found, after: dict[str, bytes]
    ) -> list[str]:
        """A crash right after the start: recovering again changes nothing."""
        abort = root / "abort"
        if not abort.exists():
            abort.touch()
        again = self._start(root)
        if again.refusal:
            return [f"the second start is refused: {again.refusal}"]
        wrong = []
        # A place that nothing guards is believed or not, by what else was read.
        unguarded = outcome is Outcome.UNGUARDED
        spared = {self.original.records[number].start for number in case.hit if unguarded}
        if sound_bytes(again, spared) != sound_bytes(found, spared):
            wrong.append("the second start serves something else")
        bytes_now, _ = snapshot(root)
        for name in sorted(bytes_now.keys() | after.keys()):
            changed = bytes_now.get(name) != after.get(name)
            if changed and is_store_file(name, ("commitlog", "consumequeue", "index")):
                wrong.append(f"the second recovery changed {name}")
        return wrong

    def _check_rebuild(
        self, case: Case, outcome: Outcome, root: Path, found: Found, after: dict[str, bytes]
    ) -> list[str]:
        """Queues and index made again from the log alone."""
        for name in ("consumequeue", "index"):
            shutil.rmtree(root / name, ignore_errors=True)
        rebuilt = self._start(root)
        if rebuilt.refusal:
            return [f"the rebuild is refused: {rebuilt.refusal}"]
        wrong = []
        spared = {self.original.records[number].start for number in case.hit}
        before, now = sound_bytes(found, spared), sound_bytes(rebuilt, spared)
        lost = [place for place in before if now.get(place) != before[place]]
        # If two records claim one slot and no unit tells them apart, the first is kept.
        if len(lost) > (len(case.hit) if outcome is Outcome.UNGUARDED else 0):
            wrong.append(f"{lost} differ after a rebuild")
        if outcome is Outcome.FEWER:
            return wrong + self._check_hits(rebuilt)
        if not case.hit and outcome is not Outcome.STAYS and not self.original.has_addresses:
            files, _ = snapshot(root)
            wrong += [
                f"the rebuilt {name} differs"
                for name, data in after.items()
                if is_store_file(name, ("consumequeue",))
                and not data.startswith(LINK)
                and files.get(name, b"").rstrip(b"\0") != data.rstrip(b"\0")
            ]
        return wrong


def is_store_file(name: str, folders: tuple[str, ...]) -> bool:
    """Whether a relative path is one of the store's own files in one of the folders."""
    folder, _, _ = name.partition("/")
    return folder in folders and _STORE_NAME.fullmatch(name.rpartition("/")[2]) is not None


def sound_bytes(found: Found, damaged_starts: set[int]) -> dict[Place, bytes]:
    """The served bytes, without the records that were damaged (by their place in the log)."""
    return {
        place: data
        for place, data in found.served.items()
        if int.from_bytes(data[28:36], "big") not in damaged_starts
    }


def judge_of(originals: dict[str, Original], scratch: Path) -> Callable[[Case], list[str]]:
    """Returns a judge of any case; `scratch` is empty before and after each."""
    os.chmod(scratch, 0o755)  # for who has no rights
    stores = {name: StoreJudge(original, scratch) for name, original in originals.items()}
    tables = ConfigJudge(originals["clean"], scratch)
    return lambda case: (tables if case.tables else stores[case.image]).judge(case)
