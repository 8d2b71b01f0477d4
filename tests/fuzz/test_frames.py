"""Hostile frames, bounded to seconds: nothing raises, nothing grows with what was announced."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc

import pytest

from aerobee.protocol.errors import BadFrame
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.frames.frame import MAX_FRAME_BYTES, FrameDecoder

SECONDS = 2.0

GOOD = [
    make_request(
        310,
        {"a": "PG", "b": "T", "c": "TBW102", "i": "TAGS\x01a\x02KEYS\x01k", "m": "false"},
        b"body" * 20,
        serialization=serialization,
    ).encode()
    for serialization in (0, 1, 2)
]
INTERESTING = [0, 1, 3, 4, 0x7F, 0x80, 0xFF, 0x7B, 0x7D, 0x22, 0x5C, 0x2F]


def frame(header: bytes, serialization: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header), serialization << 24 | len(header)) + header


def feed_in_pieces(data: bytes, source: random.Random) -> FrameDecoder:
    decoder = FrameDecoder()
    position = 0
    while position < len(data):
        size = source.choice([1, 3, 4, 8, 100, len(data)])
        for command in decoder.feed(data[position : position + size]):
            assert all(type(value) is str for value in command.ext.values())
            assert type(command.body) is bytes
        position += size
    return decoder


def test_mutated_streams_never_raise(seed: int) -> None:
    source = random.Random(seed)
    end = time.monotonic() + SECONDS
    failed = rounds = 0
    while time.monotonic() < end:
        data = bytearray(b"".join(source.choice(GOOD) for _ in range(source.randint(1, 3))))
        for _ in range(source.randint(1, 6)):
            position = source.randrange(len(data))
            match source.randrange(4):
                case 0:
                    data[position] = source.choice(INTERESTING)
                case 1:
                    data[position] = source.randrange(256)
                case 2:
                    del data[position : position + source.randint(1, 8)]
                case _:
                    data[position:position] = source.randbytes(source.randint(1, 8))
            data = data or bytearray(b"\0")
        failed += feed_in_pieces(bytes(data), source).failed is not None
        rounds += 1
    assert rounds > 100
    assert 0 < failed < rounds


@pytest.mark.parametrize("length", [-1, 0, 3, -(2**31), 2**31 - 1, MAX_FRAME_BYTES])
def test_impossible_lengths_fail_at_once(length: int) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">i", length) + b"x" * 100) == []
    assert isinstance(decoder.failed, BadFrame)


def test_a_frame_cut_at_each_byte_waits_and_then_is_whole() -> None:
    for good in GOOD:
        for cut in range(len(good)):
            decoder = FrameDecoder()
            assert decoder.feed(good[:cut]) == []
            assert decoder.failed is None
            assert decoder.buffered == cut
            assert len(decoder.feed(good[cut:])) == 1


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":1,"opaque":1,"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"code":1,"opaque":1,"extFields":{"a":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_002,
        b"{" * 10_000,
        b'{"code":1,"opaque":1,"extFields":{"a":' + b"9" * 200_000 + b"}}",
        b'{"code":1e400,"opaque":1}',
        b'{"code":NaN,"opaque":1}',
        b'{"code":1,"opaque":1,"remark":"' + b"\\" * 100_001,
        b"/*" * 100_000,
        b"{" + b"," * 200_000,
        b'{"code":1,"opaque":1,"extFields":{"a":' + b"\xed\xa0\x80" * 80_000,
        b'{"code":1,"opaque":1,"extFields":{"a":"' + b"\\ud800" * 40_000,
    ],
)
def test_hostile_json_fails_quickly(header: bytes) -> None:
    decoder = FrameDecoder()
    started = time.process_time()
    assert decoder.feed(frame(header)) == []
    assert isinstance(decoder.failed, BadFrame)
    assert time.process_time() - started < 1.0


def test_many_duplicate_keys_cost_no_more_than_their_bytes() -> None:
    header = b'{"code":1,"opaque":1,"extFields":{' + b'"a":"1",' * 20_000 + b'"a":"2"}}'
    [command] = FrameDecoder().feed(frame(header))
    assert command.ext == {"a": "2"}


def test_an_announced_frame_takes_no_memory() -> None:
    decoders = [FrameDecoder() for _ in range(100)]
    start = struct.pack(">iI", MAX_FRAME_BYTES - 4, 20) + b"x" * 30
    tracemalloc.start()
    for decoder in decoders:
        decoder.feed(start)
    used, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 100 * 1024


def test_a_slow_large_frame_is_not_scanned_again_and_again() -> None:
    body = bytes(1_000_000)
    data = make_request(310, {}, body).encode()
    decoder = FrameDecoder()
    started = time.process_time()
    commands = []
    for position in range(0, len(data), 10):
        commands += decoder.feed(data[position : position + 10])
    assert [command.body for command in commands] == [body]
    assert time.process_time() - started < 2.0
