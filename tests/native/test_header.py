"""Which headers are plain, and what is found in them, seen through the questions of a guard."""

from __future__ import annotations

import base64
import hmac
import json
import struct
import time
from collections.abc import Mapping

import pytest

from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.frames.header_encode import JSON, ROCKETMQ
from aerobee.protocol.frames.signature import Signer
from tests.forms import compiled_form

SECRET = "a secret of nineteen"
HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"


class Asked:
    """Records a guard's questions about the rights of clients whose signature it has found
    right."""

    def __init__(self) -> None:
        compiled_form()
        from aerobee.native.guard import Guard
        from aerobee.native.requests import Requests

        signer = Signer(SECRET)
        self._topics: list[str] = []
        guard = Guard(lambda _: False, lambda _: signer.blocks, self._note)
        guard.forget(any_white=False)
        self._requests = Requests(None, None, False, guard)

    def _note(self, _account: bytes, _code: int, topic: str, _group: str) -> bool:
        self._topics.append(topic)
        return False

    def topic_of(self, header: bytes, form: int) -> str | None:
        """The topic that was found in a send; None: the header is not plain."""
        self._topics.clear()
        frame = struct.pack(">ii", 4 + len(header), form << 24 | len(header)) + header
        self._requests.take(memoryview(frame), HOST, True, 1, 1 << 20, time.monotonic, float("inf"))
        assert len(self._topics) <= 1
        return self._topics[0] if self._topics else None


def signed(fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The fields with the account's, whose names come before all in small letters."""
    signed = {b"AccessKey": b"somebody", **fields}
    text = b"".join(signed[key] for key in sorted(signed))
    signed[b"Signature"] = base64.b64encode(hmac.digest(SECRET.encode(), text, "sha1"))
    return signed


def as_json(fields: Mapping[bytes, bytes]) -> bytes:
    text = b",".join(b'"%s":"%s"' % field for field in fields.items())
    return b'{"code":310,"extFields":{%s},"flag":0,"opaque":7,"version":399}' % text


def as_binary(fields: Mapping[bytes, bytes]) -> bytes:
    text = b"".join(
        struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value
        for key, value in fields.items()
    )
    return struct.pack(">hbhiiii", Code.SEND_MESSAGE_V2, 0, 399, 7, 0, 0, len(text)) + text


FORMS = {JSON: as_json, ROCKETMQ: as_binary}


@pytest.mark.parametrize("form", FORMS)
def test_each_byte_at_each_place_of_a_word_is_seen(form: int) -> None:
    """Texts are gone through eight bytes at once, and the rest byte by byte."""
    asked = Asked()
    header_of = FORMS[form]
    for size in range(1, 19):
        for place in range(size):
            for byte in range(256):
                topic = bytearray(b"x" * size)
                topic[place] = byte
                found = asked.topic_of(header_of(signed({b"b": bytes(topic)})), form)
                plain = byte < 128 if form == ROCKETMQ else 32 <= byte < 128 and byte not in b'"\\'
                assert found == (topic.decode() if plain else None), (size, place, byte)


@pytest.mark.parametrize("form", FORMS)
def test_bytes_behind_what_ends_a_text_do_not_count(form: int) -> None:
    """The lowest special byte of eight counts: a borrow may make the bytes above it look
    special."""
    asked = Asked()
    for size in range(1, 19):
        for following in (b"!", b"#", b"]", b" ", b"\x7f"):
            fields = signed({b"b": b"x" * size, b"c": following * 9})
            assert asked.topic_of(FORMS[form](fields), form) == "x" * size
            fields = signed({b"b": following * size, b"c": b"x"})
            assert asked.topic_of(FORMS[form](fields), form) == following.decode() * size


@pytest.mark.parametrize("form", FORMS)
def test_a_header_that_is_cut_off_anywhere_is_not_plain(form: int) -> None:
    asked = Asked()
    header = FORMS[form](signed({b"b": b"orders", b"e": b"0", b"i": b"a"}))
    assert asked.topic_of(header, form) == "orders"
    for size in range(len(header)):
        cut = header[:size]
        assert asked.topic_of(cut, form) is None, size
        if form == ROCKETMQ and size >= 21:  # of the size that it says
            cut = cut[:17] + struct.pack(">i", size - 21) + cut[21:]
            assert asked.topic_of(cut, form) is None, size


@pytest.mark.parametrize("form", FORMS)
def test_a_header_of_many_fields_is_not_plain(form: int) -> None:
    asked = Asked()
    for fields, plain in ((29, True), (30, False), (200, False)):
        given = signed({b"b": b"orders"} | {b"f%d" % field: b"1" for field in range(fields)})
        assert asked.topic_of(FORMS[form](given), form) == ("orders" if plain else None), fields


@pytest.mark.parametrize("form", FORMS)
def test_a_field_that_is_there_twice_is_not_plain(form: int) -> None:
    asked = Asked()
    for twice in (b"b", b"AccessKey", b"Signature", b"z"):
        fields = signed({b"b": b"orders", b"z": b"1"})
        header = FORMS[form]({**fields, b"?" * len(twice): fields[twice]})
        assert asked.topic_of(header.replace(b"?" * len(twice), twice), form) is None, twice


def test_what_may_not_be_between_fields() -> None:
    asked = Asked()
    header = as_json(signed({b"b": b"orders"}))
    assert json.loads(header)["extFields"]["b"] == "orders"
    for right, wrong in (
        (b'"extFields":{', b'"extFields": {'),
        (b'"extFields":{', b'"extFields":{,'),
        (b'"b":"orders"', b'"b" :"orders"'),
        (b'"b":"orders"', b'"b": "orders"'),
        (b'"b":"orders"', b'"b":"orders" '),
        (b'"b":"orders"', b'"b":1'),
        (b'"b":"orders"', b'"\\u0062":"orders"'),
        (b'"},"flag"', b'",},"flag"'),
        (b'"},"flag"', b'"}"flag"'),
        (b'"},"flag"', b'"},"extFields":{},"flag"'),
    ):
        assert right in header
        assert asked.topic_of(header.replace(right, wrong), JSON) is None, wrong
