"""A blocking connection to a broker that may have many requests under way, and what tests ask."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator, Mapping

from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from tests.crash.judges.records import Record, records_of

SEND, PULL, COMMIT, CREATE_TOPIC = 310, 11, 15, 17
MAX_OFFSET, MIN_OFFSET = 30, 31
SUCCESS, SYSTEM_BUSY, RETRY_IMMEDIATELY = 0, 2, 20
# Pulls of one queue that may be asked again: each takes a search 256 KiB of log further.
_ASKED_AGAIN_MOST = 200
_HEARD = 65_536


class Link:
    """One connection; a context manager. Raises ConnectionError when the broker is gone."""

    def __init__(self, port: int, timeout_s: float = 30.0, *, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self.own_port: int = self._socket.getsockname()[1]
        self._decoder = FrameDecoder()
        self._timeout_s = timeout_s

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> int:
        """Send a request; the number by which its answer is known."""
        request = make_request(code, {name: str(value) for name, value in ext.items()}, body)
        self._socket.sendall(request.encode())
        return request.opaque

    def answers(self, timeout_s: float | None = None) -> Iterator[Command]:
        """Answers as they come in, at least one read; none when the time is over first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            if not selector.select(self._timeout_s if timeout_s is None else timeout_s):
                return
        data = self._socket.recv(_HEARD)
        if not data:
            raise ConnectionError("the broker closed the connection")
        yield from self._decoder.feed(data)

    def call(self, code: int, ext: Mapping[str, object], body: bytes = b"") -> Command:
        """One request and its answer, with nothing else under way."""
        wanted = self.ask(code, ext, body)
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            for answer in self.answers():
                assert answer.opaque == wanted
                return answer
        raise TimeoutError(f"request {code} was not answered within {self._timeout_s} s")

    def create_topic(self, topic: str, queues: int) -> Command:
        """Make a topic, in a request that must succeed."""
        answer = self.call(
            CREATE_TOPIC,
            {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
                "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0, "order": "false",
            },
        )  # fmt: skip
        assert answer.code == SUCCESS, answer.remark
        return answer

    def read_queue(
        self, topic: str, queue_id: int, *, stopped: bool = False
    ) -> tuple[list[Record], tuple[int, int]]:
        """Everything a queue serves, in order, and its first and last offset. A `stopped` store
        may serve less than that."""
        where = {"topic": topic, "queueId": queue_id}
        low = position = int(self.call(MIN_OFFSET, where).ext["offset"])
        high = int(self.call(MAX_OFFSET, where).ext["offset"])
        found: list[Record] = []
        asked_again = 0
        while position < high:
            answer = self.call(PULL, pull_fields(topic, queue_id, position, 0))
            assert "nextBeginOffset" in answer.ext, f"{answer.code}: {answer.remark}"
            following = int(answer.ext["nextBeginOffset"])
            if following == position and stopped:
                break
            if following == position and answer.code == RETRY_IMMEDIATELY:
                # The message of a wrong entry is being looked for, a part of the log a pull.
                asked_again += 1
                assert asked_again < _ASKED_AGAIN_MOST, f"{topic}/{queue_id}: {position} for ever"
                continue
            assert following > position, f"{topic}/{queue_id} stands still at {position}"
            found += records_of(answer.body) if answer.code == SUCCESS else ()
            position = following
        return found, (low, high)


def send_fields(topic: str, queue_id: int, properties: Mapping[str, str]) -> dict[str, object]:
    """The header of SEND_MESSAGE_V2 (protocol/WIRE.md 3.1)."""
    text = "\2".join(f"{name}\1{value}" for name, value in properties.items())
    return {
        "a": "crash-test", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0,
        "g": 0, "h": 0, "i": text, "j": 0, "k": "false", "l": 0, "m": "false",
    }  # fmt: skip


def pull_fields(topic: str, queue_id: int, offset: int, suspend_ms: int) -> dict[str, object]:
    """The header of PULL_MESSAGE; with `suspend_ms` it may wait for the first message."""
    return {
        "consumerGroup": "crash-test", "topic": topic, "queueId": queue_id, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 6 if suspend_ms else 4, "commitOffset": 0,
        "suspendTimeoutMillis": suspend_ms, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    }  # fmt: skip


def log_offset_of(msg_id: str) -> int:
    """The log offset that the broker's message id ends with (protocol/WIRE.md 6.6)."""
    return int(msg_id[-16:], 16)
