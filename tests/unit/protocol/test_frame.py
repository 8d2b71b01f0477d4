"""Frames are cut incrementally, within limits, and nothing but `failed` says what was wrong."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.errors import BadFrame, BadHeader
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.frame import MAX_FRAME_BYTES, MAX_HEADER_BYTES, FrameDecoder

HEADER = b'{"code":34,"opaque":7}'


def frame(header: bytes = HEADER, body: bytes = b"", serialization: int = 0) -> bytes:
    words = struct.pack(">iI", 4 + len(header) + len(body), serialization << 24 | len(header))
    return words + header + body


def fed_in_pieces(data: bytes, cuts: list[int]) -> tuple[list[Command], FrameDecoder]:
    decoder = FrameDecoder()
    commands: list[Command] = []
    position = 0
    for cut in [*sorted(cuts), len(data)]:
        commands += decoder.feed(data[position:cut])
        position = max(position, cut)
    return commands, decoder


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
commands = st.builds(
    Command,
    code=st.integers(-0x8000, 0x7FFF),
    ext=st.dictionaries(texts.filter(bool), texts, max_size=4),
    flag=st.integers(-(2**31), 2**31 - 1),
    language=st.sampled_from(["JAVA", "CPP", "GO", "RUST"]),
    opaque=st.integers(-(2**31), 2**31 - 1),
    remark=st.none() | texts.filter(bool),
    version=st.integers(-0x8000, 0x7FFF),
    body=st.binary(max_size=50),
    serialization=st.sampled_from([0, 1, 2]),
)


@given(commands)
def test_a_command_survives_its_frame(command: Command) -> None:
    decoder = FrameDecoder()
    [decoded] = decoder.feed(command.encode())
    decoded.wire_name = None
    assert decoded == command


@given(st.lists(commands, min_size=1, max_size=3), st.lists(st.integers(0, 400), max_size=6))
def test_any_cut_of_the_stream_gives_the_same_commands(
    sent: list[Command], cuts: list[int]
) -> None:
    data = b"".join(command.encode() for command in sent)
    whole = FrameDecoder().feed(data)
    assert len(whole) == len(sent)
    cut, decoder = fed_in_pieces(data, [min(cut, len(data)) for cut in cuts])
    assert cut == whole
    assert decoder.failed is None
    assert decoder.buffered == 0


@given(st.lists(commands, min_size=1, max_size=2))
def test_byte_by_byte_gives_the_same_commands(sent: list[Command]) -> None:
    data = b"".join(command.encode() for command in sent)
    one_by_one, decoder = fed_in_pieces(data, list(range(len(data))))
    assert one_by_one == FrameDecoder().feed(data)
    assert not decoder.buffered


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_arbitrary_bytes_end_in_failed_or_wait(data: bytes, cuts: list[int]) -> None:
    whole = FrameDecoder()
    first = whole.feed(data)
    pieces, decoder = fed_in_pieces(data, [min(cut, len(data)) for cut in cuts])
    assert pieces == first
    assert (decoder.failed is None) == (whole.failed is None)
    assert decoder.buffered <= len(data)


@given(st.sampled_from([0, 1, 2]), st.binary(max_size=100))
def test_arbitrary_headers_end_in_failed_or_a_command(serialization: int, header: bytes) -> None:
    decoder = FrameDecoder()
    cut = decoder.feed(frame(header, b"body", serialization))
    assert len(cut) == (0 if decoder.failed else 1)
    if decoder.failed:
        assert isinstance(decoder.failed, BadHeader)


def test_damaged_frames_never_raise(seed: int) -> None:
    source = random.Random(seed)
    good = [
        make_request(310, {"a": "1", "b": "x"}, b"b", serialization=s).encode() for s in (0, 1, 2)
    ]
    for _ in range(3000):
        data = bytearray(source.choice(good))
        for _ in range(source.randint(1, 3)):
            data[source.randrange(len(data))] = source.randrange(256)
        FrameDecoder().feed(data)


@pytest.mark.parametrize("total", [-1, -(2**31), 0, 3, MAX_FRAME_BYTES - 3, 2**31 - 1])
def test_impossible_length_is_refused_on_its_four_bytes(total: int) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">i", total)) == []
    assert isinstance(decoder.failed, BadFrame)
    assert decoder.buffered == 0


def test_largest_frame_is_taken_and_keeps_only_what_came() -> None:
    decoder = FrameDecoder()
    total = MAX_FRAME_BYTES - 4
    start = struct.pack(">iI", total, len(HEADER)) + HEADER
    assert decoder.feed(start) == []
    assert decoder.buffered == len(start)
    assert decoder.failed is None
    [command] = decoder.feed(bytes(total - 4 - len(HEADER)))
    assert len(command.body) == total - 4 - len(HEADER)
    assert decoder.buffered == 0


@pytest.mark.parametrize(
    "words",
    [
        struct.pack(">iI", 10, 7),  # header longer than the frame
        struct.pack(">iI", MAX_HEADER_BYTES + 100, MAX_HEADER_BYTES + 1),
        struct.pack(">iI", 100, 3 << 24 | 50),  # unknown serialization
        struct.pack(">iI", 100, 255 << 24 | 50),
    ],
)
def test_impossible_header_is_refused_on_its_eight_bytes(words: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(words) == []
    assert decoder.failed is not None


def test_good_frames_before_a_violation_are_returned_and_nothing_after() -> None:
    decoder = FrameDecoder()
    cut = decoder.feed(frame() + frame(body=b"x") + struct.pack(">i", -1) + frame())
    assert [command.body for command in cut] == [b"", b"x"]
    assert decoder.failed is not None
    assert decoder.feed(frame()) == []


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"12",
        b"{",
        HEADER + b" {}",
        b'{"code":"x","opaque":1}',
        b'{"code":2147483648,"opaque":1}',
        b'{"code":1,"opaque":NaN}',
        b'{"code":1,"opaque":1,"extFields":[]}',
        b'{"code":1,"opaque":1,"x":' + b"[" * 10_000,
        b'{"code":1,"opaque":1,"x":' + b"9" * 10_000 + b"}",
        b'{"code":1,"opaque":1,"x":1e999}',
    ],
)
def test_unreadable_json_headers_are_refused(header: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(frame(header)) == []
    assert isinstance(decoder.failed, BadHeader)


def decode_json(header: object) -> Command:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    decoder = FrameDecoder()
    [command] = decoder.feed(frame(data))
    return command


def test_values_become_text_at_the_door() -> None:
    command = decode_json(
        {
            "code": "10",
            "opaque": "5",
            "flag": None,
            "version": 63,
            "language": "CPP",
            "extFields": {"n": 7, "b": False, "t": True, "f": 1.5, "o": {"x": [1]}, "z": None},
        }
    )
    assert (command.code, command.opaque, command.flag, command.version) == (10, 5, 0, 63)
    assert command.ext == {"n": "7", "b": "false", "t": "true", "f": "1.5", "o": '{"x":[1]}'}


def test_keys_match_in_any_case_and_missing_ones_take_defaults() -> None:
    command = decode_json({"CODE": 11, "OPAQUE": 3, "ExtFields": {"A": "b"}})
    assert (command.code, command.opaque, command.ext) == (11, 3, {"A": "b"})
    assert (command.language, command.flag, command.version) == ("JAVA", 0, 0)
    assert decode_json({}).code == 0


def test_fastjson_dialect_is_read() -> None:
    header = b'{/* c */\'code\':34,opaque:7,"extFields":{"i":"a\x01b\x02",},}'
    command = decode_json(header)
    assert (command.code, command.opaque, command.ext) == (34, 7, {"i": "a\x01b\x02"})


def test_the_last_of_duplicate_keys_counts() -> None:
    command = decode_json(b'{"code":1,"opaque":1,"code":2,"extFields":{"a":"1","a":"2"}}')
    assert (command.code, command.ext) == (2, {"a": "2"})
    entries = b"\0\1a\0\0\0\x011\0\1a\0\0\0\x012"
    header = struct.pack(">hbhiii", 1, 0, 0, 1, 0, 0) + struct.pack(">i", len(entries)) + entries
    [binary] = FrameDecoder().feed(frame(header, serialization=1))
    assert binary.ext == {"a": "2"}


@pytest.mark.parametrize(
    ("given_language", "kept"),
    [("GO", "GO"), (3, "PYTHON"), ("KLINGON", "OTHER"), (99, "OTHER"), (None, "OTHER")],
)
def test_unknown_languages_are_other(given_language: object, kept: str) -> None:
    assert decode_json({"code": 1, "opaque": 1, "language": given_language}).language == kept


def test_a_header_cannot_speak_for_the_frame() -> None:
    command = decode_json({"code": 1, "opaque": 1, "body": "YWJj", "serialization": 2})
    assert (command.body, command.serialization) == (b"", 0)


def binary_header(remark_length: int, ext_length: int, rest: bytes = b"") -> bytes:
    return struct.pack(">hbhiiii", 11, 12, 63, 5, 0, remark_length, ext_length) + rest


def test_unknown_language_byte_is_harmless() -> None:
    [command] = FrameDecoder().feed(frame(binary_header(0, 0).replace(b"\x0c", b"\x63"), b"", 1))
    assert (command.language, command.ext) == ("OTHER", {})


def test_negative_ext_length_means_no_fields() -> None:
    [command] = FrameDecoder().feed(frame(binary_header(0, -1), serialization=1))
    assert command.ext == {}


@pytest.mark.parametrize(
    "header",
    [
        b"\0" * 20,
        binary_header(-1, 0),
        binary_header(2**31 - 1, 0),
        binary_header(0, 2**31 - 1),
        binary_header(0, 7, b"\0\1a\xff\xff\xff\xff"),
        binary_header(0, 8, b"\0\1a\0\0\0\x09x"),
        binary_header(0, 3, b"\xff\xffa"),
    ],
)
def test_unreadable_binary_headers_are_refused(header: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(frame(header, serialization=1)) == []
    assert isinstance(decoder.failed, BadHeader)


@pytest.mark.parametrize(
    "header", [b"", b"\xc0", b"\x97", b"\x91" * 5000, b"\x97\xc3\x03\x01\x01\x00\xc0\x80"]
)
def test_unreadable_msgpack_headers_are_refused(header: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(frame(header, serialization=2)) == []
    assert isinstance(decoder.failed, BadHeader)


def test_nothing_of_the_read_buffer_is_kept() -> None:
    buffer = bytearray(frame(body=b"abc") + frame(body=b"def")[:20])
    decoder = FrameDecoder()
    [command] = decoder.feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert command.body == b"abc"
    [second] = decoder.feed(frame(body=b"def")[20:])
    assert second.body == b"def"


def test_a_started_frame_is_seen() -> None:
    decoder = FrameDecoder()
    data = frame(body=b"abc")
    assert decoder.feed(data + data[:5])
    assert decoder.buffered == 5
    assert decoder.feed(data[5:])
    assert decoder.buffered == 0


def test_codes_beyond_16_bits_do_not_fit_the_binary_header() -> None:
    with pytest.raises(ValueError, match="200050"):
        make_request(200050, serialization=1).encode()


def test_frames_that_another_has_served_are_let_go() -> None:
    """Otherwise an idle connection kept its last read, and it counted as unfinished input."""
    decoder = FrameDecoder()
    decoder.add(frame() * 3)
    decoder.skip(2 * len(frame()))
    assert (decoder.buffered, decoder.held) == (len(frame()), 3 * len(frame()))
    decoder.skip(len(frame()))
    assert (decoder.buffered, decoder.held, decoder.chunk) == (0, 0, (b"", 0))
    [command] = decoder.feed(frame())
    assert command.code == 34
