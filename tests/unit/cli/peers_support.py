"""Peers for tests of commands: a peer that accepts and never answers, and a peer that answers as
RocketMQ 4.9 does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, encode_response, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.calling.blocking_caller import BlockingCaller, ConnectOptions

Answer = tuple[int, bytes]
#: The answers of a peer by request code: code and body, or what makes them of the request.
Answers = Mapping[int, Answer | Callable[[Command], Answer]]


@contextmanager
def _listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A port whose connections are each given to `serve` on a thread of its own."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listener.accept()
                    taken.append(accepted)
                    threading.Thread(target=serve, args=(accepted,), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        # Closing alone does not wake a thread that accepts.
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(10)
    for one in taken:
        one.close()


@contextmanager
def silent_peer() -> Iterator[str]:
    """The address of a peer that accepts connections and never answers."""
    with _listening(lambda _: None) as address:
        yield address


@contextmanager
def answering_peer(answers: Answers) -> Iterator[str]:
    """The address of a broker that knows these requests, and answers 3 to all others."""
    unknown = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), b""

    def serve(accepted: socket.socket) -> None:
        decoder = FrameDecoder(1 << 24, 1 << 20)
        with suppress(OSError):
            while data := accepted.recv(65_536):
                decoder.add(data)
                while (command := decoder.cut()) is not None:
                    answer = answers.get(command.code, unknown)
                    code, body = answer(command) if callable(answer) else answer
                    accepted.sendall(encode_response(command, code, None, None, body))

    with _listening(serve) as address:
        yield address


@contextmanager
def registered(
    name_server: str, name: str, address: str, topics: Mapping[str, int] | None = None
) -> Iterator[None]:
    """A broker of that name at a name server, with these topics and their permissions, while the
    `with` lasts."""
    table = {
        topic: {
            "topicName": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": perm,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }
        for topic, perm in (topics or {}).items()
    }  # fmt: skip
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    ext = {
        "brokerName": name, "brokerAddr": address, "clusterName": "DefaultCluster",
        "brokerId": "0", "haServerAddr": "", "compressed": "false", "bodyCrc32": "0",
    }  # fmt: skip
    with BlockingCaller(name_server, ConnectOptions()) as caller:
        request = make_request(RequestCode.REGISTER_BROKER, ext, json.dumps(body).encode())
        answer = caller.call(request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        yield
