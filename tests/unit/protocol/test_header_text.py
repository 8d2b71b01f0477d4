"""Header text that is no UTF-8, or half an emoji, becomes what RocketMQ's broker makes of it."""

from __future__ import annotations

import struct

import msgpack
import pytest

from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from tests.broken_text import BROKEN_BYTES, BROKEN_ESCAPES


def frame(header: bytes, serialization: int) -> bytes:
    words = struct.pack(">iI", 8 + len(header), serialization << 24 | len(header))
    return words + header + b"body"


def binary_frame(ext: dict[bytes, bytes], remark: bytes = b"") -> bytes:
    entries = b"".join(
        struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value
        for key, value in ext.items()
    )
    fixed = struct.pack(">hbhiii", 310, 0, 409, 7, 0, len(remark))
    return frame(fixed + remark + struct.pack(">i", len(entries)) + entries, 1)


def read(data: bytes) -> Command:
    decoder = FrameDecoder()
    behind = frame(b'{"code":34,"opaque":8}', 0)
    commands = decoder.feed(data + behind)
    assert decoder.failed is None
    command, following = commands
    assert (following.code, following.body) == (34, b"body")
    assert (command.code, command.opaque, command.body) == (310, 7, b"body")
    return command


@pytest.mark.parametrize(("sent", "kept"), BROKEN_BYTES + BROKEN_ESCAPES)
def test_a_json_header_with_broken_text_is_read_as_java_reads_it(sent: bytes, kept: bytes) -> None:
    header = b'{"code":310,"opaque":7,"remark":"%s","extFields":{"i":"%s","%s":"v"}}'
    command = read(frame(header % (sent, sent, sent), 0))
    text = kept.decode()
    assert (command.ext, command.remark) == ({"i": text, text: "v"}, text)


@pytest.mark.parametrize(("sent", "kept"), BROKEN_BYTES)
def test_a_binary_header_with_broken_text_is_read_as_java_reads_it(
    sent: bytes, kept: bytes
) -> None:
    command = read(binary_frame({b"i": sent, sent: b"v"}, remark=sent))
    text = kept.decode()
    assert (command.ext, command.remark) == ({"i": text, text: "v"}, text)


@pytest.mark.parametrize(("sent", "kept"), BROKEN_BYTES)
def test_a_msgpack_header_with_broken_text_is_read_likewise(sent: bytes, kept: bytes) -> None:
    fields = [310, 3, 409, 7, 0, sent, {b"i": sent, sent: b"v"}]
    command = read(frame(msgpack.packb(fields, use_bin_type=False), 2))
    text = kept.decode()
    assert (command.ext, command.remark) == ({"i": text, text: "v"}, text)


def test_broken_text_where_nobody_reads_it_is_passed_over() -> None:
    header = b'{"code":310,"opaque":7,"language":"J\xff","other":"\\uD83D","x":["\xed\xa0\x80"]}'
    command = read(frame(header, 0))
    assert (command.language, command.ext) == ("OTHER", {})


@pytest.mark.parametrize("header", [b'\xff{"code":1,"opaque":1}', b'{"code":1,\xff"opaque":1}'])
def test_broken_bytes_between_the_texts_are_no_header(header: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(frame(header, 0)) == []
    assert decoder.failed is not None
