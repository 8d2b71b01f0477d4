"""The compiled steps of the bulk decode change nothing: the same starts, columns, bad records and
errors as with the plain ones alone, of records of all kinds, hurt and cut anywhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.native.form import chosen_decode
from aerobee.pipeline.decode import compiled
from aerobee.pipeline.decode.columns import MAP_TYPE, STORE_COLUMNS, TOPIC_COLUMNS
from aerobee.pipeline.decode.decode import HEADERS, Form, decode
from aerobee.pipeline.decode.properties import property_matcher
from aerobee.pipeline.decode.record_starts import MAGICS, record_starts
from aerobee.pipeline.decode.selection import Selection
from aerobee.protocol.message.record_layout import (
    LOG_OFFSET_POSITION,
    MESSAGE_MAGIC,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
)
from tests.forms import compiled_form

COLUMNS = tuple(dict.fromkeys((*TOPIC_COLUMNS, *STORE_COLUMNS)))
BASE = 1 << 30


@pytest.fixture(scope="module", autouse=True)
def steps() -> Any:
    compiled_form()
    return chosen_decode()


class Drawn(NamedTuple):
    """The parts of a record; `topic` and `properties` need not be UTF-8."""

    magic: int
    topic: bytes
    body: bytes
    properties: bytes
    sys_flag: int
    born_host: bytes
    time: int
    crc_is_right: bool

    def encoded(self, number: int, log_offset: int) -> bytes:
        header = HEADERS[self.sys_flag & (SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)]
        head = np.zeros(1, header)
        topic_length = len(self.topic).to_bytes(1 if self.magic == MESSAGE_MAGIC else 2, "big")
        rest = self.body + topic_length + self.topic
        rest += len(self.properties).to_bytes(2, "big") + self.properties
        head["size"], head["magic"] = header.itemsize + len(rest), self.magic
        head["bodyCrc"] = (zlib.crc32(self.body) & 0x7FFFFFFF) ^ (not self.crc_is_right)
        head["queueId"], head["flag"], head["queueOffset"] = number % 3, -number, number
        head["commitLogOffset"], head["sysFlag"] = log_offset, self.sys_flag
        head["bornTimestamp"], head["storeTimestamp"] = self.time, 1_700_000_000_000 + number
        for name in ("bornHost", "storeHost"):
            host = (self.born_host * 20)[: header[name].itemsize]
            head[name] = np.frombuffer(host, header[name])
        head["reconsumeTimes"], head["preparedTransactionOffset"] = number % 5, -1
        head["bodyLength"] = len(self.body)
        return head.tobytes() + rest


_MANY_NAMES = "\x02".join(f"name{number}\x01v" for number in range(80)).encode()
texts = st.one_of(
    st.just(b"TAGS\x01a\x02KEYS\x01k w\x02UNIQ_KEY\x01AC11\x02own\x01x"),
    st.sampled_from(
        [b"", b"TAGS\x01b\x02", b"TAGS\x01a\x02TAGS\x01b", b"\x01v\x02n\x01\x02loose\x02K\x01a\x01",
         b"\x02K\x01a\x01b", b"\x02\x02TAGS\x01a", b"REAL_TOPIC\x01R\x02RETRY_TOPIC\x01Q",
         b"RETRY_TOPIC\x01Q", b"\x01", "TAGS\x01\u00fc\u4e2d\U0001f600\x02\u00e9\x01v".encode(),
         b"TAGS\x01\xff", _MANY_NAMES]
    ),
    st.binary(max_size=12),
    st.text("\x01\x02ab\u00e9", max_size=30).map(str.encode),
)  # fmt: skip
bodies = st.one_of(st.binary(max_size=60), st.just(b"x" * 40))
kinds = st.sampled_from([0, 0, 0, SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, 0x30])
plain_records = st.builds(
    Drawn, st.just(MESSAGE_MAGIC), st.sampled_from([b"Orders", b"Other", b"t" * 127]), bodies,
    texts, st.just(0), st.just(b"\xc0\0\2\7\0\0\1\1"), st.just(1_700_000_000_000), st.just(True),
)  # fmt: skip
records = st.one_of(
    plain_records,
    st.builds(
        Drawn, st.sampled_from([*MAGICS, MESSAGE_MAGIC]),
        st.sampled_from([b"Orders", b"", "\u00fc".encode(), b"\xff"]), bodies, texts, kinds,
        st.binary(min_size=1, max_size=20),
        st.sampled_from([0, -1, 1 << 62, -(1 << 63), 253_402_300_799_999, 253_402_300_800_000]),
        st.booleans(),
    ),
    st.builds(
        lambda body, good, bits: Drawn(
            MESSAGE_MAGIC, b"Orders", zlib.compress(body)[: None if good else -1], b"",
            SYS_COMPRESSED | bits, b"\x01", 0, True,
        ),
        bodies, st.booleans(), kinds,
    ),
)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Some records, some of them over and over, with wrong bytes in it and cut."""
    data, number = bytearray(), 0
    for one in draw(st.lists(st.one_of(plain_records, records), max_size=6)):
        for _ in range(draw(st.sampled_from([1, 1, 2, 12]))):
            data += one.encoded(number, BASE + len(data))
            number += 1
    changes = st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), max_size=3)
    for position, value in draw(st.one_of(st.just([]), changes)):
        if data:
            data[position % len(data)] = value
    cut = draw(st.one_of(st.just(0), st.integers(0, 300)))
    return bytes(data[: max(0, len(data) - cut)])


@st.composite
def forms(draw: st.DrawFn) -> Form:
    columns = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
    kind = draw(st.sampled_from(["map", "map", "json", "raw"]))
    if kind != "map":
        columns = [one._replace(type="string") if one.type == MAP_TYPE else one for one in columns]
    selections = st.builds(
        Selection, st.sampled_from([None, frozenset({"Orders"}), frozenset({"\u00fc", "no"})]),
        st.sampled_from([None, frozenset({0, 2})]),
        st.sampled_from([None, 1_700_000_000_003]), st.sampled_from([None, 1_700_000_000_009]),
    )  # fmt: skip
    return Form(
        columns=tuple(columns),
        properties=kind,
        decompress=draw(st.booleans()),
        only_zlib=draw(st.booleans()),
        check_crc=draw(st.booleans()),
        broker_name="broker",
        selection=draw(st.one_of(st.none(), selections)),
        damage_is_bad=draw(st.booleans()),
        system_properties=draw(st.booleans()),
        matching=draw(
            st.sampled_from(
                [None, None, property_matcher(("SQL92", "TAGS = 'a' OR own IS NOT NULL"))]
            )
        ),
    )


def outcome(data: Any, form: Form, log_offset: int | None) -> tuple[Any, ...]:
    """Everything that comes of it: starts and their end, rows and bad records, or the error."""
    starts, end = record_starts(data, 0, len(data))
    try:
        batch, bad = decode(data, starts, form, log_offset)
    except ValueError as error:
        return starts.tolist(), end, str(error)
    batch.validate(full=True)
    return starts.tolist(), end, batch, bad


def both(run: Callable[[], tuple[Any, ...]], steps: Any) -> tuple[Any, Any]:
    with patch.object(compiled, "steps", lambda: None):
        plain = run()
    with patch.object(compiled, "steps", lambda: steps):
        return plain, run()


@settings(max_examples=800)
@given(data=logs(), form=forms(), log_offset=st.sampled_from([None, BASE, BASE + 8]))
def test_drawn_logs_come_to_the_same(
    steps: Any, data: bytes, form: Form, log_offset: int | None
) -> None:
    plain, found = both(lambda: outcome(data, form, log_offset), steps)
    assert found == plain
    if len(plain) == 4:
        assert found[2].schema.equals(plain[2].schema)


@settings(max_examples=150)
@given(data=logs(), cut=st.integers(0, 200))
def test_a_buffer_is_looked_at_no_further_than_it_goes(steps: Any, data: bytes, cut: int) -> None:
    """A part of a larger buffer, whose bytes go on behind it."""
    part = memoryview(data + data)[: max(0, len(data) - cut)]
    form = Form(COLUMNS, broker_name="broker", damage_is_bad=True)
    plain, found = both(lambda: outcome(part, form, BASE), steps)
    assert found == plain


_LIMITS = np.iinfo(np.int64)
positions = st.lists(
    st.one_of(
        st.integers(-10, 500), st.sampled_from([_LIMITS.min, _LIMITS.max, 1 << 31, 1 << 32, -1])
    ),
    max_size=5,
).map(lambda found: np.array(found, np.int64))


@settings(max_examples=300)
@given(data=st.one_of(logs(), st.binary(max_size=300)), starts=positions, ends=positions)
def test_positions_outside_of_a_buffer_are_not_looked_at(
    steps: Any, data: bytes, starts: np.ndarray, ends: np.ndarray
) -> None:
    """No caller has such positions; the sanitizers watch (`make sanitize`)."""
    header = HEADERS[0]
    inside = all(0 <= start <= len(data) - header.itemsize for start in starts.tolist())
    for found in (
        steps.numbers(data, starts, header.itemsize - 8, 8),
        steps.microseconds(data, starts, header.itemsize - 8, _LIMITS.min, _LIMITS.max // 1000),
        steps.hexadecimal(data, starts, ((8, 8), (header.itemsize - 8, 8))),
    ):
        assert found is None or inside
    steps.kind(data, starts)
    for log_offset in (None, 0, _LIMITS.max):
        assert inside or steps.places(data, starts, header.itemsize, 1, log_offset) is None
    pairs = list(zip(starts.tolist(), ends.tolist(), strict=False))
    within = len(starts) == len(ends) and all(0 <= a <= b <= len(data) for a, b in pairs)
    for found in (steps.slices(data, starts, ends), steps.crcs(data, starts, ends)):
        assert found is None or within
    narrow = np.array(ends[np.abs(ends // 2) < 1 << 30], np.int32)
    entries = steps.entries(data, narrow)
    if entries is not None:
        assert narrow.min() >= 0
        assert narrow.max() <= len(data)
        entries.map({b"TAGS"})
        entries.value((b"TAGS", b"KEYS"))


def test_plain_records_are_taken(steps: Any) -> None:
    """This shows that the tests above do not compare the plain form with itself."""
    data = b""
    for number in range(100):
        text = b"TAGS\x01a\x02own\x01%d" % number
        one = Drawn(MESSAGE_MAGIC, b"t", b"body", text, 0, b"\x01", 0, True)
        data += one.encoded(number, len(data))
    found, end = steps.record_starts(data, 0, len(data), MAGICS)
    starts = np.frombuffer(found, np.int64)
    assert (len(starts), end) == (100, len(data))
    assert steps.kind(data, starts) == (MESSAGE_MAGIC, 0)
    columns = np.frombuffer(steps.places(data, starts, HEADERS[0].itemsize, 1, 0), np.int64)
    body_at, body_end, _, topic_end, ends = columns.reshape(5, 100)
    offsets = np.frombuffer(steps.numbers(data, starts, LOG_OFFSET_POSITION, 8), np.int64)
    assert offsets.tolist() == starts.tolist()
    assert steps.slices(data, body_at, body_end)[1] == b"body" * 100
    assert set(np.frombuffer(steps.crcs(data, body_at, body_end), np.int32)) == {
        zlib.crc32(b"body") & 0x7FFFFFFF
    }
    text_offsets, texts = steps.slices(data, topic_end + 2, ends)
    entries = steps.entries(texts, np.frombuffer(text_offsets, np.int32))
    assert entries.map(frozenset())[1] == 200
    assert entries.value((b"own",))[3] == b"".join([b"%d" % number for number in range(100)])
    assert entries.value((b"none",))[0] == 100
