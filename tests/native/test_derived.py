"""Both forms derive the same from the records of a log: from each run of records, and from whole
stores that are recovered and made again, whatever damage they have."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.protocol.hashing import java_hash, java_hash_with_prefix
from aerobee.protocol.message.filler import FILLER_TOPIC
from aerobee.protocol.message.properties import MAX_PROPERTIES_BYTES
from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.protocol.message.record_check import (
    CHECK_BODY,
    CHECK_NOTHING,
    MOST_BYTES,
    MOST_RECORDS,
    Checked,
    scan_records,
)
from aerobee.protocol.message.record_layout import pack_host
from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import rebuild
from aerobee.store.disk.files import Files
from aerobee.store.disk.offsets_file import OffsetsFile
from aerobee.store.dispatch.derived import Derivation, by_queue
from aerobee.store.errors import StoreError
from aerobee.store.index.layout import HASHED
from aerobee.store.log.compiled import Compiled, Derived
from aerobee.store.log.scan.sequence import runs_of
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.delay_levels import DelayLevels
from tests import campaign
from tests.forms import compiled_form
from tests.unit.store.support import (
    ManualClock,
    adopt,
    from_properties,
    kill_image,
    small_settings,
    tree,
)

_RUNS = "runs of records, in both forms"
_STORES = "stores made again, in both forms"
V4, V6 = pack_host("192.0.2.7", 54321), pack_host("2001:db8::7", 1)
START = 4096
#: Topics that no run has, whatever else a record is.
NOT_PLAIN = (SCHEDULE_TOPIC, TIMER_TOPIC, FILLER_TOPIC)
Claims = list[tuple[Any, list[tuple[int, bytes]]]]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return compiled_form().store


# --- runs of records ----------------------------------------------------------------------------

#: Parts of properties, sound ones and such as only readers of millions of records stumble over.
_PARTS = (
    "TAGS\x01TagA", "TAGS\x01", "TAGS\x01b", "UNIQ_KEY\x01AC11", "UNIQ_KEY\x01", "UNIQ_KEY\x01B 2",
    "KEYS\x01a b  c", "KEYS\x01 d", "KEYS\x01 ", "KEYS", "\x01KEYS\x01e", "K\x01UNIQ_KEY\x01D4", "",
    "P\x01v\x01w", "P\x01" + "x" * 60, "TAGS\x01\u00fc", "KEYS\x01k\u00e9 \U0001f41d", "P\x01a\0b",
    "INNER_MULTI_DISPATCH\x01Far,Off", "INNER_MULTI_QUEUE_OFFSET\x014,5", "DELAY\x013",
    "INNER_MULTI_QUEUE_OFFSET\x01", "TIMER_OUT_MS\x01170000000000",
)  # fmt: skip
plain_parts = st.sampled_from(_PARTS[:15])
properties = st.one_of(
    st.lists(plain_parts, max_size=4), st.lists(plain_parts, max_size=4),
    st.lists(st.sampled_from(_PARTS), max_size=4),
).map(lambda parts: "\x02".join(parts).encode())  # fmt: skip
topics = st.sampled_from(["Orders", "Orders", "Orders", "Other", "B\u00fcro", *NOT_PLAIN])
messages = st.builds(
    StoreMessage,
    topics, st.sampled_from([0, 0, 1, 7]), st.just(2), st.sampled_from([0, 0, 0, 1, 4, 8, 12]),
    st.just(3), st.sampled_from([V4, V4, V6]), st.sampled_from([V4, V4, V6]), st.just(0),
    st.just(0), st.binary(max_size=40), properties,
)  # fmt: skip


class Change(NamedTuple):
    """Damage: at which part of what there is, and what stands there then."""

    part: float
    value: bytes


change = st.builds(
    Change,
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.binary(min_size=1, max_size=4), st.sampled_from([b"\0" * 40, b"\xff" * 8])),
)
changes = st.lists(change, max_size=3)


def log_of(written: list[StoreMessage], numbers: list[int]) -> bytearray:
    data = bytearray()
    for message, number in zip(written, numbers, strict=True):
        data += encode_record(message, number, START + len(data), 1_700_000_000_000 + number)
    return data


def changed(data: bytearray, damage: list[Change]) -> bytearray:
    """These bytes, damaged, at their old length."""
    size = len(data)
    for part, value in damage:
        at = int(part * size)
        data[at : at + len(value)] = value
    return data[:size]


def place_of(topic: bytes, queue_id: int) -> tuple[Any, int] | None:
    """The dispatcher's function, with names for queues."""
    text = topic.decode(errors="replace")
    if text in NOT_PLAIN or not text.isprintable() or "/" in text or "\ufffd" in text:
        return None
    if queue_id == 7:
        return None
    return (text, queue_id) if queue_id >= 0 else None, java_hash(text + "#")


def expected(records: list[Checked], derive_from: int, above: int) -> tuple[Claims, int, bytes]:
    """The plain form's result for records; keys up to a log offset are counted only."""
    derivation = Derivation[tuple[str, int]](
        {},
        lambda topic, queue_id: None if queue_id == 7 else (topic, queue_id),
        lambda name, queue_id: (name, queue_id),
        DelayLevels("1s 5s 10s"),
    )
    kept = [record for record in records if record[0] >= derive_from]
    entries = derivation.entries(kept)
    claims = [
        (queue, [tuple(run) for run in runs_of(offsets, b"".join(packed))])
        for queue, (offsets, packed) in by_queue(entries).items()
    ]
    keys, hashed = 0, b""
    for _, _, log_offset, _, _, words, store_ms, topic in entries:
        keys += len(words)
        for word in words if log_offset > above else ():
            value = java_hash_with_prefix(java_hash(topic + "#"), word)
            hashed += HASHED.pack(value, log_offset, store_ms)
    return claims, keys, hashed


def is_plain(record: Checked) -> bool:
    topic, text = record[6], record[-1]
    lists = any(part.startswith(b"INNER_MULTI_QUEUE_OFFSET\x01") for part in text.split(b"\x02"))
    return topic not in NOT_PLAIN and text.isascii() and b"\0" not in text and not lists


def check_run(
    compiled: Compiled,
    data: bytes | bytearray,
    check_crc: int,
    derive_from: int,
    low: int,
    high: int,
) -> int:
    """Hold all runs of a log against the plain form; how many records were taken."""
    deriver = compiled.deriver(place_of, check_crc == CHECK_BODY, True, derive_from)
    position = taken = 0
    while position < len(data):
        records = scan_records(data, position, START + position, len(data), check_crc)
        derived = deriver.take(bytes(data), position, START + position, len(data), low, high)
        count = 0 if derived is None else derived.records
        if derived is not None:
            assert count <= len(records) or len(records) == MOST_RECORDS
            while len(records) < count:
                behind = records[-1][0] + records[-1][1] - START
                records += scan_records(data, behind, START + behind, len(data), check_crc)
            last = records[count - 1]
            assert (derived.end, derived.store_ms) == (last[0] + last[1], last[5])
            wanted = expected(records[:count], derive_from, high)
            assert (derived.claims, derived.keys, derived.hashed) == wanted
        if count < len(records) and count < MOST_RECORDS:
            stopped = records[count]
            asked = derive_from <= stopped[0] and low <= stopped[0] <= high
            assert not is_plain(stopped) or asked or stopped[2] == 7
        taken += count
        if not records:
            return taken
        # The next run begins behind this run, and behind the record that is not plain.
        behind = records[min(count, len(records) - 1)]
        position = behind[0] + behind[1] - START
    return taken


def test_runs_of_drawn_logs_come_to_the_same(compiled: Compiled) -> None:
    seen = {"taken": 0, "records": 0, "logs": 0}

    @settings(max_examples=campaign.size(_RUNS))
    @given(
        st.lists(st.tuples(messages, st.integers(0, 5)), min_size=1, max_size=12),
        changes,
        st.sampled_from([CHECK_NOTHING, CHECK_BODY]),
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
    )
    def look(
        drawn: list[tuple[StoreMessage, int]],
        damage: list[Change],
        check_crc: int,
        parts: tuple[float, float, float],
    ) -> None:
        numbers, number = [], 0
        for _, step in drawn:
            # Mostly the next one.
            number = number + 1 if step else 3
            numbers.append(number)
        data = changed(log_of([message for message, _ in drawn], numbers), damage)
        derive_from, low, high = (START + int(part * len(data)) for part in parts)
        if low > high:
            low, high = 0, -1
        seen["taken"] += check_run(compiled, data, check_crc, derive_from, low, high)
        seen["records"] += len(drawn)
        seen["logs"] += 1

    look()
    campaign.note(_RUNS, seen["logs"], taken=seen["taken"], records=seen["records"])
    assert seen["taken"] > seen["records"] / 5


def record(
    topic: str = "Orders", text: bytes = b"UNIQ_KEY\x01AC11\x02TAGS\x01TagA"
) -> StoreMessage:
    return StoreMessage(topic, 1, 2, 0, 3, V4, V4, 0, 0, b"body", text)


def test_each_changed_byte_of_a_record_is_judged_the_same(compiled: Compiled) -> None:
    for host in (V4, V6):
        one = msgspec.structs.replace(record(), store_host=host)
        sound = log_of([one] * 3, [1, 2, 3])
        size = len(sound) // 3
        for position in range(size, 2 * size):
            for value in (0, 1, 2, 0x7F, 0x80, 0xFF, sound[position] ^ 0x10):
                data = bytearray(sound)
                data[position] = value
                for check_crc in (CHECK_NOTHING, CHECK_BODY):
                    check_run(compiled, data, check_crc, 0, 0, -1)


def test_a_cut_log_is_taken_to_the_cut(compiled: Compiled) -> None:
    sound = log_of([record(), record("T", b""), record()], [1, 2, 3])
    for length in range(len(sound)):
        # Nothing lies behind it, for a sanitizer to see.
        check_run(compiled, bytes(sound[:length]), CHECK_BODY, 0, 0, -1)


def taken(compiled: Compiled, data: bytes, stop: int | None = None) -> Derived | None:
    deriver = compiled.deriver(place_of, True, True, 0)
    return deriver.take(data, 0, START, len(data) if stop is None else stop, 0, -1)


def test_one_run_is_bounded_in_records_and_bytes(compiled: Compiled) -> None:
    few = bytes(log_of([record(text=b"")] * 20_000, list(range(20_000))))
    found = taken(compiled, few)
    assert found is not None
    assert MOST_RECORDS <= found.records < 10_000
    body = bytes(MOST_BYTES // 3)
    large = msgspec.structs.replace(record(), body=body)
    found = taken(compiled, bytes(log_of([large] * 5, list(range(5)))))
    assert found is not None
    assert found.records == 3


def test_nothing_behind_the_stop_is_taken(compiled: Compiled) -> None:
    data = bytes(log_of([record()] * 3, [1, 2, 3]))
    size = len(data) // 3
    for stop in range(2 * size, len(data)):
        found = taken(compiled, data, stop)
        assert found is not None
        assert found.records == 2
    found = taken(compiled, data, 10 * len(data))
    assert found is not None
    assert found.records == 3


def test_properties_that_are_too_long_are_no_record_in_either_form(compiled: Compiled) -> None:
    """Their length is two bytes, of which messages may use fifteen bits."""
    sound = log_of([record()] * 2, [1, 2])
    long = b"P\x01" + b"x" * (MAX_PROPERTIES_BYTES - 1)
    one = bytearray(log_of([record(text=long[:-2])], [3]))
    at = len(one) - len(long[:-2])
    one[at:] = long
    one[at - 2 : at] = len(long).to_bytes(2, "big")
    one[:4] = len(one).to_bytes(4, "big")
    one[28:36] = (START + len(sound)).to_bytes(8, "big")
    data = bytes(sound + one)
    assert len(scan_records(data, 0, START, len(data))) == 2
    found = taken(compiled, data)
    assert found is not None
    assert found.records == 2


def test_a_message_with_thousands_of_keys_is_indexed_by_all_of_them(compiled: Compiled) -> None:
    text = b"KEYS\x01" + b"k " * 16_000
    data = log_of([record(), record(text=text), record()], [1, 2, 3])
    assert check_run(compiled, data, CHECK_BODY, 0, 0, -1) == 3


# --- whole stores -------------------------------------------------------------------------------


class Life(NamedTuple):
    """A store's messages, what is lost of its files, and how it is opened again."""

    sent: list[tuple[str, int, int, bytes, bytes]]
    damage: list[tuple[int, Change]]
    lost: set[str]
    settings: dict[str, Any]
    rebuilt: tuple[bool, bool] | None
    #: Whether the offsets file is of this store, not of the one it was copied from.
    own: bool


sent = st.tuples(
    st.sampled_from(["Orders", "Orders", "Other", "%RETRY%g", "Gone", "x"]),
    st.sampled_from([0, 0, 1]),
    st.sampled_from([0, 0, 0, 0, 4, 8, 12]),
    st.integers(0, 700).map(bytes),
    # Where one is not plain, the plain form goes on to the end of a segment as small as these.
    st.lists(st.sampled_from([*_PARTS[:15] * 8, *_PARTS[15:17], _PARTS[18]]), max_size=3).map(
        lambda parts: "\x02".join(parts).encode()
    ),
)
lives = st.builds(
    Life,
    st.lists(sent, min_size=10, max_size=70),
    st.lists(st.tuples(st.integers(0, 99), change), max_size=4),
    st.sets(st.sampled_from(["consumequeue", "index", "checkpoint", "offsets", "abort"])),
    st.fixed_dictionaries(
        {
            "index_enabled": st.sampled_from([True, True, False]),
            "multi_dispatch": st.booleans(),
            "check_crc_on_recover": st.sampled_from([True, True, False]),
            "verify_property_crc": st.sampled_from([False] * 5 + [True]),
        }
    ),
    st.sampled_from([None, None, (True, True), (True, False), (False, True)]),
    st.sampled_from([False, False, True]),
)  # fmt: skip


def written(root: Path, life: Life) -> None:
    """The store as its writer left it when it was killed, and what became of it."""
    clock = ManualClock()
    running = root.with_name("running")
    store = MessageStore.open(
        small_settings(running, multi_dispatch=life.settings["multi_dispatch"]), clock=clock
    )
    for topic, queue_id, sys_flag, body, text in life.sent:
        clock.time_ms += len(body)
        store.log.put(from_properties(body, topic, queue_id, text, sys_flag=sys_flag))
        if len(body) % 3:
            store.dispatch()
    kill_image(running, root)
    store.close()
    shutil.rmtree(running)
    for name in life.lost:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    logs = sorted((root / "commitlog").iterdir())
    others = sorted(path for path in (root / "consumequeue").rglob("0*") if path.is_file())
    for number, change in life.damage:
        among = others if number % 5 == 0 and others else logs
        path = among[number % len(among)]
        path.write_bytes(changed(bytearray(path.read_bytes()), [change]))


def outcome(root: Path, life: Life, compiled: Compiled | None) -> dict[str, Any]:
    """The result of the store's life in one form: files, reports, refusals."""
    clock = ManualClock(1_800_000_000_000)
    options = small_settings(root, **life.settings)
    found: dict[str, Any] = {}
    try:
        if life.rebuilt is not None:
            queues, index = life.rebuilt
            with StoreAtRest(options, (), clock=clock, compiled=compiled) as rest:
                report = rebuild(rest, queues=queues, index=index)
            found["rebuild"] = dataclasses.asdict(report) | {"seconds": 0}
        store = MessageStore.open(options, clock=clock, compiled=compiled)
        found["recovery"] = dataclasses.asdict(store.recovery) | {"seconds": 0}
        found["queues"] = {key: store.max_offset(*key) for key in store.queues()}
        found["closed"] = store.close()
    except StoreError as error:
        found["refused"] = type(error), str(error)
    offsets = OffsetsFile(Files(), str(root)).load()
    # Another copy is another directory, and clocks of boots go on.
    if offsets is not None:
        found["offsets"] = msgspec.structs.asdict(offsets)
        del found["offsets"]["identity"], found["offsets"]["clock"]
    found["files"] = {
        name: data
        for name, data in tree(root, ".").items()
        if name not in ("offsets", "lock", "abort")
    }
    return found


def both(folder: Path, life: Life, compiled: Compiled) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its outcome in both forms, each in the same directory."""
    written(folder / "image", life)
    found = []
    for form in (None, compiled):
        shutil.copytree(folder / "image", folder / "store")
        os.utime(folder / "store" / "lock", ns=(1, 1))
        if life.own and (folder / "store" / "offsets").exists():
            adopt(folder / "store")
        found.append(outcome(folder / "store", life, form))
        shutil.rmtree(folder / "store")
    return found[0], found[1]


def test_stores_that_are_made_again_come_to_the_same(compiled: Compiled) -> None:
    lived = [0]
    taken = _Counted(compiled)

    @settings(max_examples=campaign.size(_STORES))
    @given(lives)
    def look(life: Life) -> None:
        with tempfile.TemporaryDirectory() as folder:
            plain, other = both(Path(folder), life, taken)
            assert other == plain
        lived[0] += 1

    look()
    campaign.note(_STORES, lived[0], taken=taken.records)
    assert taken.records > 2 * lived[0]


class _Counted:
    """A compiled form that counts the records it takes."""

    def __init__(self, compiled: Compiled) -> None:
        self.scan, self.gather = compiled.scan, compiled.gather
        self.put_keys, self.put_hashed = compiled.put_keys, compiled.put_hashed
        self.place = compiled.place
        self._compiled = compiled
        self.records = 0

    def deriver(self, *given: Any) -> _CountedDeriver:
        return _CountedDeriver(self, self._compiled.deriver(*given).take)


class _CountedDeriver:
    def __init__(self, counted: _Counted, take: Callable[..., Derived | None]) -> None:
        self._counted, self._take = counted, take

    def take(self, *given: Any) -> Derived | None:
        found = self._take(*given)
        self._counted.records += 0 if found is None else found.records
        return found
