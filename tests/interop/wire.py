"""A blocking RocketMQ connection for asserting with: frames, a few requests, stored records.

Shares no code with the package on purpose. Written from the protocol description alone, it is the
neutral party that reads what a broker, ours or Java's, really stored; an error in the package's own
codec cannot hide behind itself.
"""

import ipaddress
import json
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Any

from aerobee.protocol.frames.signature import signed

SUCCESS = 0
PULL_MESSAGE, QUERY_MESSAGE, UPDATE_AND_CREATE_TOPIC = 11, 12, 17
SEARCH_OFFSET, MAX_OFFSET, MIN_OFFSET, VIEW_MESSAGE = 29, 30, 31, 33
BROKER_RUNTIME_INFO, ROUTE, CLUSTER_INFO, SEND_MESSAGE_V2 = 28, 105, 106, 310
BORN_V6, STORE_V6 = 16, 32
NO_MORE = (19, 20, 21)  # pull: not found, retry immediately, offset moved


@dataclass(slots=True)
class Answer:
    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Stored:
    """One record, as it lies in the log."""

    queue: int
    queue_offset: int
    log_offset: int
    store_ms: int
    born_host: str
    store_host: str
    body: str
    properties: dict[str, str]


class Wire:
    """One connection; use it as a context manager."""

    def __init__(
        self,
        address: str,
        timeout_s: float = 10,
        tls: ssl.SSLContext | None = None,
        account: tuple[str, str] | None = None,
    ) -> None:
        """`account`: access key and secret key that requests are signed with."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.opaque = 0
        self.account = account
        #: The broker's requests meanwhile: code, fields and body.
        self.requests: list[tuple[int, dict[str, str], bytes]] = []

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        self.ask(code, ext, body)
        return self.answer()

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> int:
        """Send a request and leave its answer for later; the number that it will have."""
        self.opaque += 1
        fields = {name: str(value) for name, value in (ext or {}).items()}
        if self.account is not None:
            fields = signed(fields, body, *self.account)
        head = {"code": code, "flag": 0, "language": "OTHER", "opaque": self.opaque, "version": 401}
        header = json.dumps({**head, "extFields": fields}).encode()
        words = struct.pack(">II", 4 + len(header) + len(body), len(header))
        self.socket.sendall(words + header + body)
        return self.opaque

    def answer(self) -> Answer:
        """The answer to the last request."""
        while True:
            number, answer = self.next_answer()
            if number == self.opaque:
                return answer

    def next_answer(self) -> tuple[int, Answer]:
        """The next answer to any request, and the request's number."""
        while True:
            (size,) = struct.unpack(">I", self._exactly(4))
            frame = self._exactly(size)
            (word,) = struct.unpack_from(">I", frame)
            end = 4 + (word & 0xFFFFFF)
            head = json.loads(frame[4:end])
            ext = head.get("extFields") or {}
            if head["flag"] & 1:
                answer = Answer(head["code"], head.get("remark"), ext, frame[end:])
                return head["opaque"], answer
            self.requests.append((head["code"], ext, frame[end:]))

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self.socket.recv(size - len(parts))
            if not got:
                raise ConnectionError("closed by the peer")
            parts += got
        return bytes(parts)

    def done(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Answer:
        """A call that must succeed."""
        answer = self.call(code, ext, body)
        assert answer.code == SUCCESS, f"request {code}: {answer.code} {answer.remark}"
        return answer

    def create_topic(self, topic: str, queues: int) -> None:
        self.done(
            UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues,
                "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0, "order": "false",
            },
        )  # fmt: skip

    def send(self, topic: str, queue: int, body: bytes, **properties: str) -> Answer:
        """Sends with properties by their stored names (KEYS, TAGS, UNIQ_KEY...)."""
        text = "\x02".join(f"{k}\x01{v}" for k, v in {"WAIT": "true", **properties}.items())
        return self.call(
            SEND_MESSAGE_V2,
            {
                "a": "wire", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 0, "h": 0,
                "i": text, "j": 0, "k": "false", "m": "false",
            },
            body,
        )  # fmt: skip

    def max_offset(self, topic: str, queue: int) -> int:
        return int(self.done(MAX_OFFSET, {"topic": topic, "queueId": queue}).ext["offset"])

    def min_offset(self, topic: str, queue: int) -> int:
        return int(self.done(MIN_OFFSET, {"topic": topic, "queueId": queue}).ext["offset"])

    def search_offset(self, topic: str, queue: int, time_ms: int) -> int:
        ext = {"topic": topic, "queueId": queue, "timestamp": time_ms}
        return int(self.done(SEARCH_OFFSET, ext).ext["offset"])

    def by_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int, *, unique: bool = False
    ) -> list[Stored]:
        ext: dict[str, Any] = {
            "topic": topic, "key": key, "maxNum": 64, "beginTimestamp": begin_ms,
            "endTimestamp": end_ms,
        }  # fmt: skip
        if unique:
            ext["_UNIQUE_KEY_QUERY"] = "true"
        answer = self.call(QUERY_MESSAGE, ext)
        return records(answer.body) if answer.code == SUCCESS else []

    def by_log_offset(self, log_offset: int) -> Stored:
        (found,) = records(self.done(VIEW_MESSAGE, {"offset": log_offset}).body)
        return found

    def pull(
        self, topic: str, queue: int, queue_offset: int, suspend_ms: int = 0, tags: str = "*"
    ) -> tuple[list[Stored], int]:
        """Messages from an offset on, and the offset to go on with; may wait for the first."""
        answer = self.call(
            PULL_MESSAGE,
            {
                "consumerGroup": "wire", "topic": topic, "queueId": queue,
                "queueOffset": queue_offset, "maxMsgNums": 32,
                "sysFlag": 6 if suspend_ms else 4, "commitOffset": 0,
                "suspendTimeoutMillis": suspend_ms, "subscription": tags, "subVersion": 0,
                "expressionType": "TAG",
            },
        )  # fmt: skip
        assert answer.code == SUCCESS or answer.code in NO_MORE, f"{answer.code} {answer.remark}"
        found = records(answer.body) if answer.code == SUCCESS else []
        return found, int(answer.ext["nextBeginOffset"])

    def read_queue(self, topic: str, queue: int, tags: str = "*") -> list[Stored]:
        """Everything a queue holds, in order, as far as the broker's tag filter lets it pass."""
        position, stop = self.min_offset(topic, queue), self.max_offset(topic, queue)
        messages: list[Stored] = []
        while position < stop:
            found, following = self.pull(topic, queue, position, tags=tags)
            assert following > position, f"queue {queue} stands still at {position} of {stop}"
            messages += found
            position = following
        return messages

    def read_topic(self, topic: str, queues: int) -> list[Stored]:
        return [one for queue in range(queues) for one in self.read_queue(topic, queue)]


def records(body: bytes) -> list[Stored]:
    """Decodes the records of a pull or query answer."""
    found: list[Stored] = []
    position = 0
    while position < len(body):
        (size,) = struct.unpack_from(">I", body, position)
        found.append(_record(body, position))
        position += size
    return found


def _record(body: bytes, start: int) -> Stored:
    fields = struct.unpack_from(">iiqqi", body, start + 12)
    queue, _flag, queue_offset, log_offset, sys_flag = fields
    position = start + 48
    born_host, position = _host(body, position, v6=bool(sys_flag & BORN_V6))
    (store_ms,) = struct.unpack_from(">q", body, position)
    store_host, position = _host(body, position + 8, v6=bool(sys_flag & STORE_V6))
    (body_size,) = struct.unpack_from(">i", body, position + 12)
    position += 16
    text = body[position : position + body_size].decode()
    position += body_size
    position += 1 + body[position]  # topic
    (size,) = struct.unpack_from(">H", body, position)
    properties = body[position + 2 : position + 2 + size].decode()
    return Stored(
        queue, queue_offset, log_offset, store_ms, born_host, store_host, text, _map(properties)
    )


def _host(body: bytes, position: int, *, v6: bool) -> tuple[str, int]:
    size = 16 if v6 else 4
    address = ipaddress.ip_address(body[position : position + size])
    return str(address), position + size + 4


def _map(text: str) -> dict[str, str]:
    pairs = (one.partition("\x01") for one in text.split("\x02") if one)
    return {name: value for name, _, value in pairs}
