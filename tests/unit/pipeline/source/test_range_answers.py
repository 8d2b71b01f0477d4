"""Answers that a healthy broker seldom gives: moved, removed, busy, refused, garbage."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from aerobee.pipeline.brokers.brokers import Brokers
from aerobee.pipeline.brokers.offsets import Range
from aerobee.pipeline.errors import BadData, DataLoss, Refused
from aerobee.pipeline.source.source_options import SourceOptions, read_source_options
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.protocol.message.record_layout import pack_host
from tests.unit.pipeline.support import bodies_of, queue

HOST = pack_host("127.0.0.1", 1)
Answer = tuple[int, str, int, bytes]


def record(offset: int, body: bytes = b"") -> bytes:
    message = StoreMessage(
        "orders", 0, 0, 0, 1, HOST, HOST, 0, 0, body or b"%d" % offset, b"TAGS\x01a"
    )
    return encode_record(message, offset, 1000 * offset, 5)


def records(start: int, end: int) -> bytes:
    return b"".join([record(offset) for offset in range(start, end)])


class Scripted:
    """A broker that answers pulls by a function of their offset; anything else it refuses."""

    def __init__(self, answer: Callable[[int, int], Answer]) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.asked: list[int] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            decoder = FrameDecoder()
            with client:
                while data := client.recv(65536):
                    for command in decoder.feed(data):
                        client.sendall(self._reply(command))

    def _reply(self, command: Command) -> bytes:
        offset, most = int(command.ext["queueOffset"]), int(command.ext["maxMsgNums"])
        self.asked.append(offset)
        code, remark, following, body = self._answer(offset, most)
        ext = {
            "suggestWhichBrokerId": "0", "nextBeginOffset": str(following), "minOffset": "0",
            "maxOffset": "100",
        }  # fmt: skip
        return encode_response(command, code, remark, ext, body)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(answer: Callable[[int, int], Answer]) -> Scripted:
        made.append(Scripted(answer))
        monkeypatch.setattr(Brokers, "address", lambda self, asked: made[-1].address)
        monkeypatch.setattr(Brokers, "refresh_route", lambda self, topic: None)
        return made[-1]

    yield make
    for one in made:
        one.close()


def options(**given: str) -> SourceOptions:
    return read_source_options(
        {"nameServer": "127.0.0.1:1", "topic": "orders", "pullTimeoutMs": "500", **given},
        streaming=False,
    )


def found(offset: int, most: int) -> Answer:
    end = min(offset + most, 100)
    return ResponseCode.SUCCESS, "FOUND", end, records(offset, end)


def numbers(start: int, end: int, **given: str) -> list[int]:
    return [int(body) for body in bodies_of(options(**given), Range(queue(0), start, end))]


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
        (ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL"),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING"),
    ],
)
def test_messages_that_retention_took_are_lost(
    scripted: Callable[..., Scripted],
    caplog: pytest.LogCaptureFixture,
    code: ResponseCode,
    remark: str,
) -> None:
    """Also under a running query: planned at 10, gone up to 40 when the task comes."""
    scripted(lambda offset, most: (code, remark, 40, b"") if offset < 40 else found(offset, most))
    with pytest.raises(DataLoss, match=r"queue 0: offsets 10 to 39 .* failOnDataLoss=false"):
        numbers(10, 60)
    with caplog.at_level(logging.WARNING, "aerobee.pipeline"):
        assert numbers(10, 60, failOnDataLoss="false") == list(range(40, 60))
    assert "30 offsets were lost" in caplog.text


def test_a_range_that_is_gone_whole_ends(scripted: Callable[..., Scripted]) -> None:
    scripted(lambda offset, most: (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 80, b""))
    assert numbers(10, 60, failOnDataLoss="false") == []


def test_filtered_offsets_are_no_loss(scripted: Callable[..., Scripted]) -> None:
    nothing = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 50, b""
    scripted(lambda offset, most: nothing if offset < 50 else found(offset, most))
    assert numbers(10, 60) == list(range(50, 60))


def test_a_busy_broker_is_asked_again(scripted: Callable[..., Scripted]) -> None:
    busy = iter([True, True, False])

    def answer(offset: int, most: int) -> Answer:
        if next(busy, False):
            return ResponseCode.SYSTEM_BUSY, "[OVERLOAD]", 0, b""
        return found(offset, most)

    assert len(scripted(answer).asked) == 0
    assert numbers(0, 20) == list(range(20))


def test_a_broker_that_refuses_is_not_asked_again(scripted: Callable[..., Scripted]) -> None:
    refusing = scripted(
        lambda offset, most: (ResponseCode.SYSTEM_ERROR, "AclException: Check signature", 0, b"")
    )
    with pytest.raises(Refused, match="1 SYSTEM_ERROR: AclException: Check signature") as caught:
        numbers(0, 20, accessKey="the-access-key", secretKey="the-secret-key")
    assert "the-" not in str(caught.value)
    assert refusing.asked == [0]


def test_an_answer_that_holds_no_records_is_bad_data(scripted: Callable[..., Scripted]) -> None:
    garbage = records(0, 3) + b"?" * 100
    scripted(lambda offset, most: (ResponseCode.SUCCESS, "FOUND", 20, garbage))
    with pytest.raises(BadData, match=r"offsets 0 to 19: byte .* begins no record"):
        numbers(0, 20)
    assert numbers(0, 20, failOnDataLoss="false") == [0, 1, 2]


def test_a_record_that_is_damaged_is_named_or_left_out(scripted: Callable[..., Scripted]) -> None:
    damaged = bytearray(records(0, 5))
    # The topic's length, of the third record.
    place = 2 * len(record(0)) + 88 + 1
    damaged[place] = 255
    scripted(lambda offset, most: (ResponseCode.SUCCESS, "FOUND", 5, bytes(damaged)))
    with pytest.raises(BadData, match="orders, broker test-broker, queue 0, offsets 0 to 4"):
        numbers(0, 5)
    assert numbers(0, 5, failOnDataLoss="false") == [0, 1, 3, 4]


def test_a_body_that_cannot_be_inflated_is_named(scripted: Callable[..., Scripted]) -> None:
    message = StoreMessage("orders", 0, 0, 1, 1, HOST, HOST, 0, 0, b"no zlib", b"")
    scripted(
        lambda offset, most: (ResponseCode.SUCCESS, "FOUND", 1, encode_record(message, 0, 0, 5))
    )
    with pytest.raises(BadData, match="offsets 0 to 0: a body compressed with zlib is damaged"):
        bodies_of(options(), Range(queue(0), 0, 1))
    assert bodies_of(options(decompress="false"), Range(queue(0), 0, 1)) == [b"no zlib"]
