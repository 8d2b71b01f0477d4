"""The members of a full broker's groups: `python full_members.py PORT COUNT GROUPS PRODUCERS MOST`.

COUNT connections that are each a producer of PG and a consumer of CG, named client0 and so on; the
first is in GROUPS other consumer groups (G0 ...) and PRODUCERS other producer groups (P0 ...) as
well. They take what they are notified of, and answer what they are asked as the members of
`tests/budget/largest_inputs.py` do, with bodies of up to MOST bytes. A process of its own, which
says `ready` when all have joined and ends with its standard input.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from tests.budget.largest_inputs import (
    GROUP,
    LIST,
    PRODUCERS,
    TOPIC,
    consumer,
    member_answer,
    subscription,
)

_HEART_BEAT, _VERSION = 34, 409
# There is a limit of each address.
_OF_ONE_ADDRESS = 4_000
# A member that is silent for two minutes is dropped.
_BEAT_S = 60
_AHEAD = 100


class Member:
    """One connection."""

    #: Heartbeats of all members that were answered.
    answered = 0

    def __init__(self, port: int, number: int, answers: bytes) -> None:
        self.socket = socket.socket()
        self.socket.bind((f"127.0.0.{2 + number // _OF_ONE_ADDRESS}", 0))
        self.socket.connect(("127.0.0.1", port))
        self._answers = answers
        self._decoder = FrameDecoder()

    def heard(self) -> None:
        """Read what there is, and answer it. ConnectionError: the broker has closed it."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection of a member")
        for frame in self._decoder.feed(data):
            if frame.is_response:
                assert frame.code == 0, frame.remark
                Member.answered += 1
            elif not frame.is_oneway:
                for part in member_answer(frame.code, frame.opaque, self._answers):
                    self.socket.sendall(part)


def _heartbeat(number: int, consumers: list[str], producers: list[str]) -> bytes:
    body = {
        "clientID": f"client{number}",
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": [consumer(name, [subscription(TOPIC, 2)]) for name in consumers],
    }
    content = json.dumps(body).encode()
    return Command(code=_HEART_BEAT, version=_VERSION, body=content, opaque=1).encode()


def _of_the_first(groups: int, producers: int) -> Iterator[bytes]:
    """Heartbeats of the first member, each with as many groups as one may name."""
    step = LIST // 2
    for at in range(0, groups, step):
        names = [f"G{number}" for number in range(at, min(at + step, groups))]
        yield _heartbeat(0, [GROUP, *names], [PRODUCERS])
    for at in range(0, producers, step):
        names = [f"P{number}" for number in range(at, min(at + step, producers))]
        yield _heartbeat(0, [GROUP], [PRODUCERS, *names])


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    port, count, groups, producers, most = map(int, sys.argv[1:])
    # They are many machines' clients: their work is not to keep the broker from its processor.
    os.nice(10)
    threading.Thread(target=_end_with_input, daemon=True).start()
    answers = b"x" * most
    members = [Member(port, number, answers) for number in range(count)]
    selector = selectors.DefaultSelector()
    for member in members:
        selector.register(member.socket, selectors.EVENT_READ, member)
    beats = [(members[0], data) for data in _of_the_first(groups, producers)]
    for number, member in enumerate(members):
        beats.append((member, _heartbeat(number, [GROUP], [PRODUCERS])))
    for number, (member, data) in enumerate(beats, 1):
        member.socket.sendall(data)
        # Not too many at once: each that joins has all others notified.
        while Member.answered < number - _AHEAD:
            _turn(selector, None)
    while Member.answered < len(beats):
        _turn(selector, None)
    print("ready", flush=True)
    _keep_up(selector, beats)


def _keep_up(selector: selectors.BaseSelector, beats: list[tuple[Member, bytes]]) -> None:
    """Heartbeats, spread over the time in which each has to come once."""
    began, sent = time.monotonic(), 0
    while True:
        _turn(selector, 0.02)
        while sent < (time.monotonic() - began) / _BEAT_S * len(beats):
            member, data = beats[sent % len(beats)]
            member.socket.sendall(data)
            sent += 1


def _turn(selector: selectors.BaseSelector, timeout_s: float | None) -> None:
    for key, _ in selector.select(timeout_s):
        key.data.heard()


if __name__ == "__main__":
    main()
