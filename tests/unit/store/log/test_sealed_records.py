"""Claims about stores whose records carry a CRC of all of them (append_property_crc)."""

from pathlib import Path

import pytest

from aerobee.protocol.message.record import StoreMessage, decode_record, sealed_record_size
from aerobee.protocol.message.record_layout import QUEUE_OFFSET_POSITION
from aerobee.store.errors import PropertiesTooLarge
from aerobee.store.message_store import MessageStore
from tests.golden import make_store_options
from tests.golden.make_store import write_store
from tests.golden.make_store_options import sealed_record
from tests.unit.store.log.test_golden_store import contents, golden_settings, write
from tests.unit.store.support import (
    SEGMENT,
    bodies,
    flip,
    from_properties,
    kill_image,
    log_segment,
    message,
    read_all,
    small_settings,
)

GOLDEN = make_store_options.target("sealed")
PROPERTIES_MOST = 32_767


def sealing(path: Path, **changes: object) -> MessageStore:
    return MessageStore.open(
        small_settings(path, append_property_crc=True, verify_property_crc=True, **changes)
    )


def with_properties(text: bytes) -> StoreMessage:
    return from_properties(b"x", "Orders", 0, text)


def test_golden_files_are_what_their_program_makes(tmp_path: Path) -> None:
    write_store(tmp_path / "made", ["0", "1"], sealed_record)
    assert contents(tmp_path / "made") == contents(GOLDEN)


def test_our_sealed_files_are_the_golden_ones_byte_for_byte(tmp_path: Path) -> None:
    write(golden_settings(tmp_path / "ours", append_property_crc=True))
    assert contents(tmp_path / "ours") == contents(GOLDEN)


def test_each_message_of_a_batch_is_sealed_and_the_batch_fits_its_segment(tmp_path: Path) -> None:
    store = sealing(tmp_path, max_message_bytes=SEGMENT)
    batch = [message(b"." * 500, unique=f"U{n}") for n in range(6)]
    first = store.log.put(message(b"first"))
    spare = SEGMENT - first.end - sum(sealed_record_size(one) for one in batch)
    assert 7 < spare < 600
    batch[0].body += b"." * (spare - 7)  # with the 20 bytes of each seal it is 1 byte too long
    result = store.log.put_batch(batch)
    assert result.log_offset == SEGMENT
    store.dispatch()
    for log_offset in (0, *result.log_offsets):
        record = store.reader.record_at(log_offset)
        assert record is not None
        assert record[-20:].startswith(b"__CRC32#\x01")
    assert store.close()


def test_a_copied_message_gets_a_seal_of_its_own(tmp_path: Path) -> None:
    store = sealing(tmp_path)
    first = store.log.put(message(b"x", tags="a"))
    record = store.reader.record_at(first.log_offset)
    assert record is not None
    seal_text = decode_record(record).properties["__CRC32#"]
    copied = store.log.put(message(b"x", more={"__CRC32#": seal_text, "RETRY_TOPIC": "Orders"}))
    store.dispatch()
    found = read_all(store)[1]
    assert copied.queue_offset == 1
    assert list(found.properties) == ["RETRY_TOPIC", "__CRC32#"]
    assert found.properties["__CRC32#"] != seal_text
    assert store.close()


@pytest.mark.parametrize(
    ("text_bytes", "end", "fits"),
    [(-21, b"", True), (-20, b"", False), (-20, b"\x02", True), (-19, b"\x02", False)],
)
def test_the_limit_of_properties_includes_the_seal(
    tmp_path: Path, text_bytes: int, end: bytes, fits: bool
) -> None:
    store = sealing(tmp_path, commit_log_segment_bytes=65_536)
    size = PROPERTIES_MOST + text_bytes
    made = with_properties(b"A\x01" + b"v" * (size - 2 - len(end)) + end)
    for put in (store.log.put, lambda one: store.log.put_batch([one])):
        if fits:
            assert put(made).size == sealed_record_size(made)
        else:
            with pytest.raises(PropertiesTooLarge, match=f"have {PROPERTIES_MOST + 1} bytes"):
                put(made)
            assert store.written == 0
    store.dispatch()
    assert len(bodies(store)) == (2 if fits else 0)
    assert store.close()


@pytest.mark.parametrize("verify", [True, False])
def test_a_flipped_queue_offset_is_found_when_seals_are_verified(
    tmp_path: Path, verify: bool
) -> None:
    running = tmp_path / "running"
    store = sealing(running)
    places = [store.log.put(message(b"%d" % n)).log_offset for n in range(8)]
    store.dispatch()
    root = kill_image(running, tmp_path / "killed")
    store.close()
    flip(log_segment(root), places[3] + QUEUE_OFFSET_POSITION + 7, 0x40)
    store = MessageStore.open(
        small_settings(root, append_property_crc=True, verify_property_crc=verify)
    )
    gaps = [gap for gap in store.recovery.gaps if gap.start == places[3]]
    if verify:
        assert "does not match the CRC at its end" in gaps[0].reason
        assert store.reader.record_at(places[3]) is None
        assert bodies(store) == [b"%d" % n for n in range(8) if n != 3]
    else:
        assert not any("CRC" in gap.reason for gap in store.recovery.gaps)
        assert store.reader.record_at(places[3]) is not None
    store.close()


def test_a_store_that_begins_to_seal_keeps_its_older_messages(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    older = store.log.put(message(b"older"))
    assert store.close()
    (tmp_path / "abort").touch()
    store = sealing(tmp_path)
    newer = store.log.put(message(b"newer"))
    store.dispatch()
    assert store.recovery.gaps == []
    assert bodies(store) == [b"older", b"newer"]
    for result in (older, newer):
        assert store.reader.record_at(result.log_offset) is not None
    assert store.close()
