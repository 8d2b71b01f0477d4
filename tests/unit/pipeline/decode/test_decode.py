"""Bulk decoding gives what reading record by record gives, and names what is no record."""

import json
import random
import struct
import sys
import zlib
from collections.abc import Sequence

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.pipeline.decode import decode as decoding
from aerobee.pipeline.decode.columns import (
    KEYS_TYPE,
    STORE_COLUMNS,
    TOPIC_COLUMNS,
    arrow_schema,
    choose,
    ddl,
)
from aerobee.pipeline.decode.decode import Bad, Form, decode, decode_parts
from aerobee.pipeline.decode.record_starts import MAGICS, MESSAGE_MAGIC_V2, record_starts
from aerobee.pipeline.decode.selection import Selection
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import StoreMessage, decode_record, encode_record
from aerobee.protocol.message.record_layout import (
    MESSAGE_MAGIC,
    MIN_RECORD_BYTES,
    SYS_COMPRESSED,
    pack_host,
)

V4, V6 = pack_host("192.0.2.7", 54321), pack_host("2001:db8::7", 1)
ALL = choose(STORE_COLUMNS, [column.name for column in STORE_COLUMNS])


def message(
    body: bytes = b"body",
    properties: str = "TAGS\x01a",
    topic: str = "Orders",
    host: bytes = V4,
    sys_flag: int = 0,
) -> StoreMessage:
    return StoreMessage(
        topic, 3, 2, sys_flag, 1_700_000_000_123, host, V4, 1, 9, body, properties.encode()
    )


def log_of(messages: Sequence[StoreMessage]) -> bytes:
    data = b""
    for number, one in enumerate(messages):
        data += encode_record(one, number, len(data), 1_700_000_001_000 + number)
    return data


EVERYTHING = Form(ALL)


def rows(data: bytes, form: Form = EVERYTHING) -> tuple[list[dict[str, object]], list[Bad]]:
    batch, bad = decode(data, record_starts(data, 0, len(data)).positions, form)
    batch.validate(full=True)
    assert batch.schema.equals(form.schema)
    return batch.to_pylist(), bad


def expected(data: bytes, position: int) -> dict[str, object]:
    """The row of one record, made with the reader of single records."""
    record = decode_record(data, position)
    properties = record.properties
    host = "[{}]:{}" if ":" in record.born_host[0] else "{}:{}"
    place = offset_msg_id(pack_host(*record.store_host), record.log_offset)
    return {
        "topic": record.topic,
        "flag": record.flag,
        "body": record.body,
        "properties": list(properties.items()),
        "headers": [{"key": name, "value": one.encode()} for name, one in properties.items()],
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "msgId": properties.get("UNIQ_KEY", place),
        "offsetMsgId": place,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "reconsumeTimes": record.reconsume_times,
        "sysFlag": record.sys_flag,
        "bornHost": host.format(*record.born_host),
        "storeHost": "{}:{}".format(*record.store_host),
        "commitLogOffset": record.log_offset,
        "preparedTransactionOffset": 9,
        "originTopic": properties.get("REAL_TOPIC", properties.get("RETRY_TOPIC")),
        "error": None,
    }


properties = st.one_of(
    st.sampled_from(
        ["", "TAGS\x01a\x02KEYS\x01k w\x02UNIQ_KEY\x01AC11", "REAL_TOPIC\x01R\x02RETRY_TOPIC\x01Q",
         "RETRY_TOPIC\x01Q", "TAGS\x01a\x02TAGS\x01b", "\x01v\x02n\x01\x02loose\x02K\x01a\x01b",
         "TAGS\x01\u00fc\u4e2d\U0001f600"]
    ),
    st.dictionaries(
        st.text("abAB\u00e9", min_size=1, max_size=4), st.text(min_size=1, max_size=9)
        .filter(lambda text: "\x02" not in text and "\x01" not in text), max_size=5,
    ).map(lambda items: "\x02".join(f"{name}\x01{value}" for name, value in items.items())),
)  # fmt: skip
messages = st.builds(
    message,
    st.binary(max_size=50),
    properties,
    st.sampled_from(["Orders", "%RETRY%g", "a" * 127]),
    st.sampled_from([V4, V4, V6]),
)


@settings(max_examples=150)
@given(st.lists(messages, max_size=20))
def test_rows_are_those_of_the_reader_of_single_records(written: list[StoreMessage]) -> None:
    data = log_of(written)
    found, bad = rows(data)
    assert not bad
    position = 0
    assert len(found) == len(written)
    for row in found:
        wanted = expected(data, position)
        row["properties"] = list(dict(row["properties"]).items())  # type: ignore[call-overload]
        assert {name: row[name] for name in wanted} == wanted
        size = row["recordSize"]
        assert isinstance(size, int)
        assert row["properties"] == list(
            decode_properties(written[row["queueOffset"]].properties).items()
        )  # type: ignore[call-overload]
        position += size


@settings(max_examples=300)
@given(
    st.lists(messages, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_damaged_records_are_named_and_the_others_read(
    written: list[StoreMessage], changes: list[tuple[int, int]]
) -> None:
    data = bytearray(log_of(written))
    for position, value in changes:
        data[position % len(data)] = value
    starts = record_starts(bytes(data), 0, len(data))
    form = Form(
        choose(STORE_COLUMNS, ["topic", "body", "properties", "recordSize"]), decompress=False
    )
    batch, bad = decode(bytes(data), starts.positions, form)
    batch.validate(full=True)
    assert batch.num_rows + len(bad) == len(starts.positions)
    assert starts.end <= len(data)


def test_each_kind_of_damage_has_its_reason() -> None:
    record = log_of([message(b"x" * 20)])

    def reason(position: int, value: bytes, **form: bool) -> str:
        data = record[:position] + value + record[position + len(value) :]
        batch, bad = decode(data, np.array([0]), Form(ALL, **form))
        assert batch.num_rows == 0
        return bad[0].reason

    assert reason(84, b"\x7f\0\0\0") == "has a body longer than itself"
    assert reason(84, b"\xff\0\0\0") == "has a body longer than itself"
    assert reason(108, b"\xff") == "has no room for its topic"
    assert reason(115, b"\0\0") == "has lengths that do not add up"
    assert reason(109, b"\xff") == "is no UTF-8"
    assert reason(90, b"y", check_crc=True) == "has a body of another CRC"
    assert decode(record[:80], np.array([0]), Form(ALL))[1] == [Bad(0, "is cut off")]


def test_compressed_bodies_are_inflated_or_left() -> None:
    plain = b"many " * 100
    data = log_of([message(zlib.compress(plain), sys_flag=SYS_COMPRESSED), message(b"as it is")])
    found, _ = rows(data)
    assert [row["body"] for row in found] == [plain, b"as it is"]
    found, _ = rows(data, Form(ALL, decompress=False))
    assert zlib.decompress(found[0]["body"]) == plain  # type: ignore[arg-type]


@pytest.mark.parametrize("damage_is_bad", [False, True])
def test_only_zlib_bodies_are_inflated_where_that_is_asked_for(damage_is_bad: bool) -> None:
    plain = b"plain " * 50
    packed = zlib.compress(plain)
    flags = [1, 0, 0x101, 0x201, 0x301, 0x701]
    data = log_of([message(packed, sys_flag=flag) for flag in flags])
    found, bad = rows(data, Form(ALL, only_zlib=True, damage_is_bad=damage_is_bad))
    assert [row["body"] for row in found] == [plain, packed, packed, packed, plain, packed]
    assert not bad


def test_bodies_of_lz4_and_zstd_are_made_plain_and_without_their_packages_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = b"many " * 100
    written = [
        message(lz4.frame.compress(plain), sys_flag=0x101),
        message(zstandard.compress(plain), sys_flag=0x201),
    ]
    found, _ = rows(log_of(written))
    assert [row["body"] for row in found] == [plain, plain]
    for name, number in (("lz4", 0), ("zstandard", 1)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ValueError, match=f"the package {name} is not installed: pip install"):
            rows(log_of(written[number : number + 1]))


@pytest.mark.parametrize("damage_is_bad", [False, True])
def test_bodies_that_become_too_much_for_one_batch_come_in_several(
    monkeypatch: pytest.MonkeyPatch, damage_is_bad: bool
) -> None:
    monkeypatch.setattr(decoding, "MAX_INFLATED_BYTES", 10_000)
    plain = [bytes([number]) * 4_000 for number in range(5)]
    data = log_of([message(zlib.compress(body), sys_flag=SYS_COMPRESSED) for body in plain])
    starts = record_starts(data, 0, len(data)).positions
    parts = list(decode_parts(data, starts, Form(ALL, damage_is_bad=damage_is_bad)))
    assert [one for batch, _ in parts for one in batch.column("body").to_pylist()] == plain
    assert max(batch.num_rows for batch, _ in parts) == 2
    assert not any(bad for _, bad in parts)


@pytest.mark.parametrize(
    ("body", "sys_flag", "text"),
    [(b"no zlib", 1, "damaged"), (zlib.compress(b"cut off")[:-3], 1, "cut off"),
     (b"", 0x101, "LZ4"), (b"", 0x201, "ZSTD")],
)  # fmt: skip
def test_a_body_that_cannot_be_inflated_says_why(body: bytes, sys_flag: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rows(log_of([message(body, sys_flag=sys_flag)]))


def test_properties_as_json_and_as_they_are_stored() -> None:
    data = log_of([message(properties="A\x01\u00e9\x02B\x012"), message(properties="")])
    columns = choose(TOPIC_COLUMNS, ["properties"])
    assert rows(data, Form(choose(TOPIC_COLUMNS, ["msgId"])))[0][0]["msgId"]
    for form, wanted in (("json", [{"A": "\u00e9", "B": "2"}, {}]), ("raw", None)):
        text = tuple(column._replace(type="string") for column in columns)
        found = [row["properties"] for row in rows(data, Form(text, properties=form))[0]]
        if wanted is None:
            assert found == ["A\x01\u00e9\x02B\x012", ""]
        else:
            assert [json.loads(one) for one in found] == wanted  # type: ignore[arg-type]


def test_keys_are_words_where_an_array_is_asked_for() -> None:
    data = log_of([message(properties="KEYS\x01one two"), message(properties="")])
    (keys,) = choose(TOPIC_COLUMNS, ["keys"])
    found, _ = rows(data, Form((keys._replace(type=KEYS_TYPE),)))
    assert [row["keys"] for row in found] == [["one", "two"], None]


def test_starts_are_found_over_changes_of_size_and_end_at_the_first_thing_that_is_none() -> None:
    sizes = [5] * 40 + [6] * 3 + [5] * 30 + list(range(1, 30)) + [7] * 50
    data = log_of([message(b"x" * size) for size in sizes])
    one_by_one, position = [], 0
    while position < len(data):
        one_by_one.append(position)
        position += int.from_bytes(data[position : position + 4], "big")
    found = record_starts(data + b"\0" * 200, 0, len(data) + 200)
    assert found.positions.tolist() == one_by_one
    assert found.end == len(data)
    for number in (0, 20, 41, 60, 100):
        broken = bytearray(data)
        broken[one_by_one[number] + 4] ^= 1
        assert record_starts(bytes(broken), 0, len(data)).end == one_by_one[number]
    assert record_starts(data, 0, len(data) - 1).end == one_by_one[-1]


def walked_one_by_one(data: bytes) -> tuple[list[int], int]:
    """Positions and end, by the rule alone."""
    found, position = [], 0
    while position + MIN_RECORD_BYTES <= len(data):
        size, magic = struct.unpack_from(">iI", data, position)
        if size < MIN_RECORD_BYTES or position + size > len(data) or magic not in MAGICS:
            break
        found.append(position)
        position += size
    return found, position


@pytest.mark.parametrize("tail", [b"", b"\xda\xa3", b"\0" * 300])
def test_starts_of_records_of_all_sizes_are_those_a_walk_finds(tail: bytes) -> None:
    # Bodies with the magic in them, some as if records began there, and records of the other magic.
    inner = log_of([message(b"inner")])
    dice = random.Random(7)
    bodies = [dice.randbytes(dice.randrange(300)) for _ in range(3000)]
    for number in range(900, 1200, 30):
        bodies[number] = b"ab" + inner + inner
        bodies[number + 7] = MESSAGE_MAGIC.to_bytes(4, "big") * 5
    data = log_of([message(body) for body in bodies])
    starts, _ = walked_one_by_one(data)
    other = bytearray(data)
    for number in (*range(2000, 2009), 2100):
        other[starts[number] + 4 : starts[number] + 8] = MESSAGE_MAGIC_V2.to_bytes(4, "big")
    for damaged in (None, 2500, 2501, 2990):
        log = bytearray(other)
        if damaged is not None:
            log[starts[damaged] + 3] ^= 0x40
        whole = bytes(log) + tail
        found = record_starts(whole, 0, len(whole))
        assert (found.positions.tolist(), found.end) == walked_one_by_one(whole)


def test_starts_are_found_wherever_the_data_ends() -> None:
    data = log_of([message(b"x" * size) for size in range(1, 14)])
    for end in range(len(data) - 700, len(data) + 1):
        found = record_starts(data[:end], 0, end)
        assert (found.positions.tolist(), found.end) == walked_one_by_one(data[:end])


def test_columns_are_chosen_by_name_and_unknown_ones_refused() -> None:
    chosen = choose(TOPIC_COLUMNS, ["Body", " queueid"])
    assert ddl(chosen) == "body binary, queueId int"
    assert [str(field.type) for field in arrow_schema(chosen)] == ["binary", "int32"]
    with pytest.raises(ValueError, match="did you mean 'queueOffset'"):
        choose(TOPIC_COLUMNS, ["queueOfset"])
    with pytest.raises(ValueError, match="twice"):
        choose(TOPIC_COLUMNS, ["body", "BODY"])
    assert "bodyCrc" not in ddl(choose(TOPIC_COLUMNS, None))
    assert choose(TOPIC_COLUMNS, ["*"]) == TOPIC_COLUMNS
    # Files of a store give all by themselves, but for what costs most and what is Kafka's.
    left = {one.name for one in STORE_COLUMNS} - {one.name for one in choose(STORE_COLUMNS, None)}
    assert left == {"bodyCrc", "headers", "originTopic"}


def as_v2(record: bytes, topic: bytes) -> bytes:
    """The record as 5.x writes it for a long topic: another magic, two bytes of topic length."""
    body_end = 88 + int.from_bytes(record[84:88], "big")
    rest = record[body_end + 1 + record[body_end] :]
    long = record[8:body_end] + len(topic).to_bytes(2, "big") + topic + rest
    return (len(long) + 8).to_bytes(4, "big") + MESSAGE_MAGIC_V2.to_bytes(4, "big") + long


def test_records_with_long_topics_of_5x_are_read_among_the_others() -> None:
    topic = "t" * 300
    data, position = b"", 0
    for number in range(60):
        record = encode_record(message(b"%d" % number), number, len(data), 1_700_000_001_000)
        data += as_v2(record, topic.encode()) if number % 20 > 10 else record
    found, bad = rows(data)
    assert not bad
    assert [row["body"] for row in found] == [b"%d" % number for number in range(60)]
    assert {row["topic"] for row in found} == {"Orders", topic}
    for row in found:
        assert row["commitLogOffset"] == position
        position += row["recordSize"]  # type: ignore[operator]


def test_only_wanted_rows_are_made_and_what_is_not_wanted_is_not_bad() -> None:
    data = log_of([message(b"%d" % n, topic="AB"[n % 2], host=(V4, V6)[n % 3 == 0])
                   for n in range(12)])  # fmt: skip

    def bodies(selection: Selection) -> list[int]:
        found, bad = rows(data, Form(ALL, selection=selection))
        assert not bad
        return [int(row["body"]) for row in found]  # type: ignore[call-overload]

    assert bodies(Selection(frozenset({"B"}))) == [1, 3, 5, 7, 9, 11]
    assert bodies(Selection(frozenset({"C"}))) == []
    assert bodies(Selection(queue_ids=frozenset({3}))) == list(range(12))
    assert bodies(Selection(queue_ids=frozenset({2}))) == []
    first = 1_700_000_001_000
    assert bodies(Selection(frozenset({"A"}), start_ms=first + 3, end_ms=first + 8)) == [4, 6]


def test_a_record_must_name_its_own_place() -> None:
    data = log_of([message(), message()])
    starts = record_starts(data, 0, len(data)).positions
    assert decode(data, starts, EVERYTHING, 0)[0].num_rows == 2
    batch, bad = decode(data, starts, EVERYTHING, 4096)
    assert batch.num_rows == 0
    assert {one.reason for one in bad} == {"names another place than its own"}


def test_bodies_that_cannot_be_inflated_can_be_bad_records() -> None:
    written = [
        message(zlib.compress(b"good"), sys_flag=1),
        message(b"no zlib", sys_flag=1),
        message(b"plain", topic="\xfc"),
        message(zlib.compress(b"fine"), sys_flag=1),
    ]
    data = bytearray(log_of(written))
    starts = record_starts(bytes(data), 0, len(data)).positions
    data[data.index("\xfc".encode())] = 0xFF
    batch, bad = decode(bytes(data), starts, Form(ALL, damage_is_bad=True))
    assert batch.column("body").to_pylist() == [b"good", b"fine"]
    assert [one.position for one in bad] == starts[1:3].tolist()
    assert "cannot be inflated" in bad[0].reason


def test_times_that_no_calendar_has_are_null() -> None:
    data = log_of([message(), message()])
    far = data[:40] + (1 << 62).to_bytes(8, "big") + data[48:]
    found, bad = rows(far)
    assert not bad
    assert found[0]["bornTimestamp"] is None
    assert found[1]["bornTimestamp"] is not None
