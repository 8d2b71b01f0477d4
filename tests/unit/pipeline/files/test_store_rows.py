"""Rows of a store's files are what reading record by record gives, however they are planned."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.pipeline.decode.record_starts import MESSAGE_MAGIC_V2
from aerobee.pipeline.files.store_plan import EntriesPart, LogPart
from aerobee.protocol.message.record import StoreMessage, encode_blank, encode_record
from aerobee.protocol.message.record_layout import pack_host
from tests.unit.pipeline.stores import (
    GOLDEN,
    as_row,
    copy_of_open,
    errors,
    offsets,
    parts,
    plain,
    read_one_by_one,
    rows,
    write_store,
)

GOLDEN_STORES = ("store", "store_ext", "store_lmq", "store_sealed")
WAYS: tuple[dict[str, str], ...] = (
    {},
    {"splitBytes": "300"},
    {"splitBytes": "300", "mapped": "true"},
    {"use": "commitlog", "splitBytes": "1k"},
)


@pytest.mark.parametrize("name", GOLDEN_STORES)
@pytest.mark.parametrize("way", WAYS)
def test_golden_stores_read_as_record_by_record(name: str, way: dict[str, str]) -> None:
    wanted = [as_row(record) for record in read_one_by_one(GOLDEN / name)]
    found = rows(GOLDEN / name, decompress="false", checkCrc="true", mode="failfast", **way)
    assert [plain(row) for row in found] == wanted


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_following_all_units_gives_all_messages_that_have_one(name: str) -> None:
    wanted = [
        as_row(record)
        for record in read_one_by_one(GOLDEN / name)
        if record.sys_flag & 0xC in (0, 8)
    ]
    for split in ("300", "100m"):
        found = rows(GOLDEN / name, decompress="false", use="consumequeue", splitBytes=split)
        assert [plain(row) for row in found] == wanted


def test_a_brokers_store_reads_whole_open_or_closed(tmp_path: Path) -> None:
    write_store(tmp_path / "closed")
    copy_of_open(tmp_path / "running", tmp_path / "copy")
    for name in ("closed", "copy"):
        wanted = [as_row(record) for record in read_one_by_one(tmp_path / name)]
        assert len(wanted) == 60
        for way in (*WAYS, {"use": "consumequeue"}):
            assert [plain(row) for row in rows(tmp_path / name, **way)] == wanted


def test_splits_are_record_starts_and_cover_the_log_once(tmp_path: Path) -> None:
    write_store(tmp_path)
    starts = {record.log_offset for record in read_one_by_one(tmp_path)}
    planned = parts(tmp_path, splitBytes="700")
    pieces = [piece for part in planned if isinstance(part, LogPart) for piece in part.pieces]
    assert len(pieces) > 8
    assert {piece.start for piece in pieces} <= starts
    for one, other in pairwise(pieces):
        assert one.end == other.start
    whole = parts(tmp_path, splitBytes="100m")
    assert len(whole) == 1
    shutil.rmtree(tmp_path / "consumequeue")
    bare = parts(tmp_path, splitBytes="700")
    assert [piece.start for part in bare if isinstance(part, LogPart) for piece in part.pieces] == [
        0, 4096, 8192,
    ]  # fmt: skip


def test_columns_and_forms_are_those_asked_for() -> None:
    path = GOLDEN / "store"
    found = rows(path, columns="QUEUEID, body", decompress="false")
    assert list(found[0]) == ["queueId", "body"]
    assert len(found) == 25
    text = rows(path, columns="properties,error", propertiesFormat="json", decompress="false")
    assert str(text[0]["properties"]).startswith("{")
    raw = rows(path, columns="properties,error", propertiesFormat="raw", decompress="false")
    assert "\x01" in str(raw[0]["properties"])
    with_origin = rows(path, resolveTopics="true", decompress="false")
    assert list(with_origin[0])[-1] == "originTopic"


def test_prepared_and_rolled_back_messages_are_in_the_log_and_have_no_unit() -> None:
    path = GOLDEN / "store"
    walked = {row["commitLogOffset"] for row in rows(path, decompress="false")}
    named = {row["commitLogOffset"] for row in rows(path, decompress="false", use="consumequeue")}
    missing = [record for record in read_one_by_one(path) if record.log_offset in walked - named]
    assert {record.sys_flag & 0xC for record in missing} == {4, 12}


def test_a_light_queues_messages_are_had_by_its_name() -> None:
    path = GOLDEN / "store_lmq"
    found = rows(path, topic="%LMQ%x")
    assert len(found) == 11
    assert "Orders" in {row["topic"] for row in found}
    assert isinstance(parts(path, topic="%LMQ%x")[0], EntriesPart)


def test_a_log_dealt_to_several_directories_is_one(tmp_path: Path) -> None:
    write_store(tmp_path / "whole")
    log = tmp_path / "whole" / "commitlog"
    wanted = offsets(rows(tmp_path / "whole"))
    for number, segment in enumerate(sorted(log.iterdir())):
        disk = tmp_path / f"disk{number % 2}"
        disk.mkdir(exist_ok=True)
        segment.rename(disk / segment.name)
    log.rmdir()
    several = ",".join(str(tmp_path / name) for name in ("whole", "disk1", "disk0"))
    assert offsets(rows(several)) == wanted
    bare = f'["{tmp_path / "disk1"}", "{tmp_path / "disk0"}"]'
    assert offsets(rows(bare)) == wanted
    # With one directory forgotten, what it holds is missed and said, not passed over.
    found = rows(f"{tmp_path / 'whole'},{tmp_path / 'disk0'}")
    assert len(errors(found)) == 1
    assert "is in no file" in errors(found)[0]


def test_two_stores_are_read_one_after_the_other(tmp_path: Path) -> None:
    write_store(tmp_path / "one", 10)
    write_store(tmp_path / "two", 5)
    found = rows(f"{tmp_path / 'one'},{tmp_path / 'two'}")
    assert len(found) == 15


V4, V6 = pack_host("192.0.2.7", 54321), pack_host("2001:db8::7", 1)
messages = st.builds(
    lambda body, topic, born, stored, properties, queue: StoreMessage(
        topic, queue, 7, 0, 1_700_000_000_000, born, stored, 2, 5, body, properties.encode()
    ),
    st.binary(max_size=300),
    st.sampled_from(["A", "%RETRY%g", "b" * 127]),
    st.sampled_from([V4, V6]),
    st.sampled_from([V4, V4, V6]),
    st.sampled_from(["", "TAGS\x01x\x02KEYS\x01k", "UNIQ_KEY\x01u\x02", "TAGS\x01\u4e2d"]),
    st.integers(0, 3),
)
SEGMENT_BYTES = 2048


def write_log(root: Path, written: list[StoreMessage]) -> list[int]:
    """A commit log without consume queues; where each message went."""
    log = b""
    places = []
    for number, one in enumerate(written):
        record = encode_record(one, number, len(log), 1_700_000_000_000 + number)
        left = SEGMENT_BYTES - len(log) % SEGMENT_BYTES
        if len(record) + 8 > left:
            log += encode_blank(left) + bytes(left - 8)
            record = encode_record(one, number, len(log), 1_700_000_000_000 + number)
        places.append(len(log))
        log += record
    log += bytes(-len(log) % SEGMENT_BYTES)
    (root / "commitlog").mkdir(parents=True)
    for start in range(0, len(log), SEGMENT_BYTES):
        path = root / "commitlog" / f"{start:020d}"
        path.write_bytes(log[start : start + SEGMENT_BYTES])
    return places


@settings(max_examples=60)
@given(written=st.lists(messages, max_size=25))
def test_random_stores_read_as_record_by_record(
    tmp_path_factory: pytest.TempPathFactory, written: list[StoreMessage]
) -> None:
    root = tmp_path_factory.mktemp("random")
    places = write_log(root, written)
    found = rows(root, mode="failfast", checkCrc="true")
    assert [plain(row) for row in found] == [as_row(one) for one in read_one_by_one(root)]
    assert offsets(found) == places


@settings(max_examples=150)
@given(
    written=st.lists(messages, min_size=5, max_size=25),
    changes=st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=40)), min_size=1,
                     max_size=3),
)  # fmt: skip
def test_damage_costs_the_records_it_hits_and_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[StoreMessage],
    changes: list[tuple[int, bytes]],
) -> None:
    root = tmp_path_factory.mktemp("damaged")
    places = write_log(root, written)
    sizes = {one.log_offset: one.size for one in read_one_by_one(root)}
    end = places[-1] + sizes[places[-1]]
    # The last record stays: where a log ends without queues is where no record follows.
    hit = set()
    for at, value in changes:
        start = at % places[-1]
        for position in range(start, min(start + len(value), places[-1])):
            path = root / "commitlog" / f"{position // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
            data = bytearray(path.read_bytes())
            data[position % SEGMENT_BYTES] = value[position - start]
            path.write_bytes(data)
            hit |= {one for one in places if one <= position < one + sizes[one]}
    found = offsets(rows(root))
    assert set(places) - hit <= set(found)
    assert all(one < end for one in found)
    assert len(found) == len(set(found))


def write_log_of_5x(tmp_path: Path) -> tuple[Path, list[int]]:
    """A segment of thirty records, of which those from 5 to 8 have topics with two bytes of length;
    where the records begin."""
    places = write_log(tmp_path, [
        StoreMessage("A", 0, 0, 0, 1, V4, V4, 0, 0, b"x" * 10, b"") for _ in range(30)
    ])  # fmt: skip
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    for place in places[5:9]:
        # This record with a topic of one byte whose length takes two, and a body a byte less.
        record = bytes(data[place : place + 102])
        data[place + 4 : place + 8] = MESSAGE_MAGIC_V2.to_bytes(4, "big")
        data[place + 84 : place + 88] = (9).to_bytes(4, "big")
        data[place + 88 : place + 102] = b"y" * 9 + b"\0\1B" + record[-2:]
    path.write_bytes(data)
    return path, places


def test_segments_of_5x_with_long_topics_are_read(tmp_path: Path) -> None:
    _, places = write_log_of_5x(tmp_path)
    found = rows(tmp_path, columns="topic,commitLogOffset,error")
    assert offsets(found) == places
    assert [row["topic"] for row in found[4:10]] == ["A", "B", "B", "B", "B", "A"]


@pytest.mark.parametrize("number", [4, 5, 7, 8])
@pytest.mark.parametrize(
    ("at", "value"), [(0, b"\0\0\0\x7f"), (4, b"\0\0\0\0"), (84, b"\0\0\7\7"), (0, bytes(90))]
)
def test_records_of_5x_behind_damage_are_found(
    tmp_path: Path, number: int, at: int, value: bytes
) -> None:
    path, places = write_log_of_5x(tmp_path)
    with path.open("r+b") as file:
        file.seek(places[number] + at)
        file.write(value)
    found = rows(tmp_path, columns="topic,commitLogOffset,error")
    assert offsets(found) == [*places[:number], *places[number + 1 :]]
    assert [row["commitLogOffset"] for row in found if row["error"]] == [places[number]]
