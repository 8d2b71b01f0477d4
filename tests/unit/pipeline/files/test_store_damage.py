"""Damaged, live, crashed and shrinking stores: the rows read of them, and the errors."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from aerobee.pipeline.errors import OptionError, StoreReadError
from aerobee.pipeline.files.part_reader import read_part
from aerobee.pipeline.files.store_options import StoreOptions
from aerobee.pipeline.files.store_plan import LogPart, Part, plan
from aerobee.protocol.message.filler import fillers
from aerobee.protocol.message.record import Message
from tests.unit.pipeline.stores import (
    copy_of_open,
    errors,
    offsets,
    parts,
    read_one_by_one,
    rows,
    write_store,
)
from tests.unit.store.support import SEGMENT


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "store")
    return tmp_path / "store"


def change(root: Path, log_offset: int, value: bytes) -> None:
    path = root / "commitlog" / f"{log_offset // SEGMENT * SEGMENT:020d}"
    with path.open("r+b") as file:
        file.seek(log_offset % SEGMENT)
        file.write(value)


def without(records: list[Message], *numbers: int) -> list[int]:
    return [one.log_offset for number, one in enumerate(records) if number not in numbers]


DAMAGE = {
    "size": (0, b"\0\0\0\x7f"), "huge size": (0, b"\x7f\xff\xff\xff"), "magic": (4, b"\0\0\0\0"),
    "own place": (28, b"\0\0\0\0\0\0\0\1"), "body length": (84, b"\0\0\7\7"),
    "zeros": (0, bytes(90)), "negative size": (0, b"\xff\xff\xff\xff"),
}  # fmt: skip


@pytest.mark.parametrize("use", ["auto", "consumequeue"])
def test_filler_that_a_unit_leads_to_is_no_message(store: Path, use: str) -> None:
    """A repair was broken off before it came to the queues."""
    records = read_one_by_one(store)
    (lost,) = [one for one in records if (one.topic, one.queue_offset) == ("Rare", 0)]
    ((_, record),) = fillers(lost.log_offset, lost.log_offset + lost.size, lost.store_timestamp_ms)
    change(store, lost.log_offset, record)
    found = rows(store, use=use, topic="Rare")
    expected = [one.log_offset for one in records if one.topic == "Rare" and one is not lost]
    assert offsets([row for row in found if row["error"] is None]) == expected
    assert all(row["topic"] != "-" for row in found)


@pytest.mark.parametrize("split", ["300", "1g"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_costs_one_record_and_is_a_row_with_its_place(
    store: Path, kind: str, split: str
) -> None:
    records = read_one_by_one(store)
    at, value = DAMAGE[kind]
    change(store, records[12].log_offset + at, value)
    found = rows(store, splitBytes=split)
    assert offsets(found) == without(records, 12)
    bad = [row for row in found if row["error"] is not None]
    assert [row["commitLogOffset"] for row in bad] == [records[12].log_offset]
    assert str(records[12].log_offset) in str(bad[0]["error"])
    assert all(value is None for name, value in bad[0].items()
               if name not in ("error", "commitLogOffset"))  # fmt: skip


@pytest.mark.parametrize("split", ["300", "1g"])
def test_a_size_that_leads_over_sound_records_hides_none(store: Path, split: str) -> None:
    records = read_one_by_one(store)
    for number in (4, 5):
        long = records[5].size + records[6].size + records[7].size
        change(store, records[number].log_offset, long.to_bytes(4, "big"))
        assert sorted(offsets(rows(store, splitBytes=split))) == without(records, number)
        change(store, records[number].log_offset, (long + 9).to_bytes(4, "big"))
        assert sorted(offsets(rows(store, splitBytes=split))) == without(records, number)
        change(store, records[number].log_offset, records[number].size.to_bytes(4, "big"))


def test_a_size_that_leads_to_the_end_of_a_segment_hides_none(store: Path) -> None:
    records = read_one_by_one(store)
    (last,) = [one for one in range(59) if records[one + 1].log_offset == SEGMENT]
    both = records[last - 1].size + records[last].size
    change(store, records[last - 1].log_offset, both.to_bytes(4, "big"))
    assert offsets(rows(store)) == without(records, last - 1)


def test_a_whole_damaged_segment_costs_that_segment(store: Path) -> None:
    records = read_one_by_one(store)
    path = store / "commitlog" / f"{SEGMENT:020d}"
    path.write_bytes(bytes(SEGMENT))
    found = rows(store)
    assert offsets(found) == [one.log_offset for one in records if one.log_offset // SEGMENT != 1]
    assert len(errors(found)) == 1
    path.unlink()
    found = rows(store)
    assert "is in no file" in errors(found)[0]
    path.write_bytes(b"")
    assert "is in no file" in errors(rows(store))[0]


def test_a_segment_cut_short_before_reads_up_to_its_end(store: Path) -> None:
    records = read_one_by_one(store)
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(records[3].log_offset + 50)
    found = rows(store)
    assert offsets(found) == [
        one.log_offset for one in records if one.log_offset >= SEGMENT
        or one.log_offset < records[3].log_offset
    ]  # fmt: skip
    assert len(errors(found)) == 2


def test_modes(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = read_one_by_one(store)
    change(store, records[2].log_offset + 4, b"\0")
    change(store, records[9].log_offset + 90, b"!")
    assert len(errors(rows(store))) == 1
    assert len(errors(rows(store, checkCrc="true"))) == 2
    with caplog.at_level(logging.WARNING, "aerobee.pipeline"):
        found = rows(store, mode="DROPMALFORMED", checkCrc="true")
    assert offsets(found) == without(records, 2, 9)
    assert not errors(found)
    assert "2 bad records" in caplog.text
    with pytest.raises(StoreReadError, match=f"log offset {records[2].log_offset} "):
        rows(store, mode="failfast")
    # Without the column for errors there is no row for them either.
    assert len(rows(store, columns="topic")) == 59


def test_a_record_across_the_reads_is_whole_in_one_of_them(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [one.log_offset for one in read_one_by_one(store)]
    for chunk in (100, 113, 200, 500, 4096):
        monkeypatch.setattr("aerobee.pipeline.files.part_reader.CHUNK_BYTES", chunk)
        assert offsets(rows(store)) == wanted
        found = rows(store, startOffset=str(wanted[5] + 1), endOffset=str(wanted[20] + 1))
        assert offsets(found) == wanted[6:21]
    change(store, wanted[30], b"\0\0\7\7")
    for chunk in (100, 500):
        monkeypatch.setattr("aerobee.pipeline.files.part_reader.CHUNK_BYTES", chunk)
        assert offsets(rows(store)) == wanted[:30] + wanted[31:]


# --- where a log ends ---------------------------------------------------------------------------


def test_a_live_store_is_read_up_to_what_its_queues_name(tmp_path: Path) -> None:
    root = copy_of_open(tmp_path / "running", tmp_path / "copy")
    records = read_one_by_one(root)
    # A unit fewer in the queue of the last record: as if that was not dispatched yet.
    last = records[-1]
    queue = sorted((root / "consumequeue" / last.topic / str(last.queue_id)).iterdir())
    for path in queue:
        data = path.read_bytes()
        at = data.find(last.log_offset.to_bytes(8, "big"))
        if at >= 0:
            path.write_bytes(data[:at] + bytes(len(data) - at))
    assert offsets(rows(root)) == without(records, 59)
    # Half written bytes behind are no concern.
    change(root, last.log_offset, b"\x11" * 60)
    found = rows(root)
    assert offsets(found) == without(records, 59)
    assert not errors(found)
    # Ended in order, it is read to the last record.
    (root / "abort").unlink()
    assert not errors(rows(root))


def test_a_log_that_ended_in_order_is_read_behind_its_queues(store: Path) -> None:
    records = read_one_by_one(store)
    shutil.rmtree(store / "consumequeue" / "A" / "1")
    assert offsets(rows(store)) == without(records)
    shutil.rmtree(store / "consumequeue")
    assert offsets(rows(store)) == without(records)


def test_segments_made_ahead_of_need_are_no_damage(store: Path) -> None:
    records = read_one_by_one(store)
    end = max(int(path.name) for path in (store / "commitlog").iterdir()) + SEGMENT
    for number in range(2):
        path = store / "commitlog" / f"{end + number * SEGMENT:020d}"
        path.write_bytes(bytes(SEGMENT))
    for queues in (True, False):
        if not queues:
            shutil.rmtree(store / "consumequeue")
        found = rows(store)
        assert offsets(found) == without(records)
        assert not errors(found)


def test_without_queues_a_torn_tail_is_the_end_and_damage_before_records_is_not(
    store: Path,
) -> None:
    records = read_one_by_one(store)
    shutil.rmtree(store / "consumequeue")
    change(store, records[-1].log_offset + 30, b"\x55" * 20)
    found = rows(store)
    assert offsets(found) == without(records, 59)
    assert not errors(found)
    change(store, records[-3].log_offset, b"\0\0\0\0")
    found = rows(store)
    assert offsets(found) == without(records, 59, 57)
    assert len(errors(found)) == 1


# --- files that change --------------------------------------------------------------------------


def planned(root: Path, **options: str) -> tuple[list[Part], StoreOptions]:
    parsed = StoreOptions.parse({"path": str(root), **options})
    return plan(parsed, parsed.selection), parsed


@pytest.mark.parametrize("mapped", ["true", "false"])
def test_a_file_that_shrinks_under_the_reader_is_an_error_in_every_mode(
    store: Path, mapped: str
) -> None:
    made, options = planned(store, mapped=mapped)
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(StoreReadError, match=r"had 4096 bytes .* ends at 1000 now"):
        list(read_part(made[0], options, options.selection))


def test_a_mapped_file_that_shrinks_between_looks_is_an_error(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.pipeline.files.part_reader.CHUNK_BYTES", 1000)
    made, options = planned(store, mapped="true")
    reading = read_part(made[0], options, options.selection)
    next(reading)
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(StoreReadError, match="truncates it while it is read"):
        list(reading)


@pytest.mark.parametrize("mapped", ["true", "false"])
def test_a_file_that_is_gone_is_an_error(store: Path, mapped: str) -> None:
    made, options = planned(store, mapped=mapped)
    (store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(StoreReadError, match="is gone since"):
        list(read_part(made[0], options, options.selection))


def test_nothing_of_a_store_is_changed(store: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return [
            (str(path), path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(store.rglob("*"))
        ]

    before = state()
    for use in ("auto", "consumequeue"):
        rows(store, use=use, topic="A,Rare", mapped="true")
    assert state() == before


# --- units --------------------------------------------------------------------------------------


def test_units_that_name_no_record_are_bad_records(store: Path) -> None:
    records = read_one_by_one(store)
    queue = store / "consumequeue" / "A" / "0"
    first = sorted(queue.iterdir())[0]
    data = bytearray(first.read_bytes())
    data[40:48] = (records[4].log_offset + 3).to_bytes(8, "big")
    data[60:72] = (1 << 40).to_bytes(8, "big") + (200).to_bytes(4, "big")
    first.write_bytes(data)
    found = rows(store, use="consumequeue")
    texts = errors(found)
    assert any("is in no file" in text for text in texts)
    assert any("named by a consume queue unit" in text for text in texts)
    assert offsets(found) == without(records, 4, 6)
    with pytest.raises(StoreReadError, match="failfast"):
        rows(store, use="consumequeue", mode="failfast")


def test_wrong_units_cannot_split_a_log_in_the_wrong_place(store: Path) -> None:
    records = read_one_by_one(store)
    for path in (store / "consumequeue").rglob("0*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            for at in range(0, len(data), 20):
                if any(data[at : at + 8]):
                    place = int.from_bytes(data[at : at + 8], "big") + 1
                    data[at : at + 8] = place.to_bytes(8, "big")
            path.write_bytes(data)
    made = parts(store, splitBytes="300")
    starts = {piece.start for part in made if isinstance(part, LogPart) for piece in part.pieces}
    assert starts == {0, SEGMENT, 2 * SEGMENT}
    assert offsets(rows(store, splitBytes="300")) == without(records)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "A"}, "unknown option 'topics'; did you mean 'topic'"),
        ({"chekcrc": "true"}, "did you mean 'checkCrc'"),
        ({"use": "index"}, "option use: 'index' is not one of auto, commitlog, consumequeue"),
        ({"mode": "failfats"}, "did you mean 'failfast'"),
        ({"splitBytes": "much"}, "option splitBytes"),
        ({"splitBytes": "1"}, "less than 256"),
        ({"queueId": "one"}, "option queueId"),
        ({"startTimestamp": "noon"}, "option startTimestamp"),
        ({"startTimestamp": "9", "endTimestamp": "8"}, "endTimestamp.* is before startTimestamp"),
        ({"startOffset": "9", "endOffset": "8"}, "endOffset.* is before startOffset"),
        ({"columns": "topic,bdy"}, "option columns: unknown column 'bdy'; did you mean 'body'"),
        ({"propertiesFormat": "xml"}, "option propertiesFormat"),
        ({"paths": "[1"}, "no JSON list"),
        ({"path": "a,,b"}, "empty place"),
        ({"path": "a,a"}, "'a' twice"),
        ({"path": ""}, "option path is required"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        StoreOptions.parse({"path": "x"} | options)


def test_what_is_no_store_is_refused_by_name(store: Path, tmp_path: Path) -> None:
    def refused(path: Path | str, text: str, **options: str) -> None:
        with pytest.raises(StoreReadError, match=text):
            rows(path, **options)

    with pytest.raises(OptionError, match="option path is required"):
        StoreOptions.parse({})
    refused(tmp_path / "nowhere", "nowhere does not exist")
    refused(tmp_path, "is no store")
    refused("gopher://secret@host/x", "scheme 'gopher'")
    (tmp_path / "dledger" / "dledger-n0").mkdir(parents=True)
    refused(tmp_path / "dledger", "holds a DLedger log")
    refused(store, "'Orders' has no consume queue; known are", topic="Orders", use="consumequeue")
    refused(store, "did you mean 'Rare'", topic="Rae", use="consumequeue")
    refused(f"{store},{store}/commitlog", "found twice")
    shutil.rmtree(store / "commitlog")
    refused(store, "no directory commitlog")


def test_a_dledger_segment_is_told_by_its_bytes(tmp_path: Path) -> None:
    entry = b"\0\0\0\1" + bytes(44) + b"\0\0\0\x64\xda\xa3\x20\xa7" + bytes(100)
    (tmp_path / f"{0:020d}").write_bytes(entry + bytes(SEGMENT - len(entry)))
    with pytest.raises(StoreReadError, match="is a DLedger log"):
        rows(tmp_path)


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert rows(tmp_path) == []
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(SEGMENT))
    assert rows(tmp_path) == []
