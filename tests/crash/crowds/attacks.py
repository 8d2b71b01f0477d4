"""Peers that want the broker's memory, descriptors or time: `python attacks.py NAME PORT SHARE`.

Run as a process of its own, so that the tests' good client does not share an interpreter with
them. It says `ready` when the attack is in place, keeps it up until its standard input ends, and
then says what it has done. SHARE of 1 is the whole attack, less is a part of it. Attackers come
from 127.0.0.2, because one address has a limit that the good client must not meet.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from aerobee.protocol.frames.command import make_request
from tests.crash.running.link import CREATE_TOPIC, PULL, pull_fields

FRAME_BYTES = 16 << 20
#: The topic whose messages have 4 MiB less what the limit of a frame leaves; made by the test.
LARGE, LARGE_QUEUES, LARGE_KEY = "Large", 1, "large"
_QUERY, _HEART_BEAT, _VIEW = 12, 34, 33
_ENDED = threading.Event()
_DONE: dict[str, int] = {}


def count(what: str, number: int = 1) -> None:
    _DONE[what] = _DONE.get(what, 0) + number


def connect(port: int) -> socket.socket:
    peer = socket.socket()
    peer.bind(("127.0.0.2", 0))
    peer.settimeout(20)
    peer.connect(("127.0.0.1", port))
    return peer


def request(code: int, ext: Mapping[str, object], body: bytes = b"") -> bytes:
    return make_request(code, {name: str(value) for name, value in ext.items()}, body).encode()


def ready() -> None:
    print("ready", flush=True)


def crowd(port: int, number: int) -> list[socket.socket]:
    """Open `number` connections, or as many as are let in."""
    peers = []
    for _ in range(number):
        with suppress(OSError):
            peers.append(connect(port))
    for one in peers:
        one.setblocking(False)
    count("connections", len(peers))
    return peers


def push(peer: socket.socket, data: bytes) -> int:
    """Send what goes at once; how much that was."""
    with suppress(OSError):
        return peer.send(data)
    return 0


def slow(port: int, share: float) -> None:
    """5,000 connections, each with a byte of a good frame a second."""
    frame = request(_HEART_BEAT, {}, b" " * 4_000)
    peers = crowd(port, round(5_000 * share))
    ready()
    place = 0
    while not _ENDED.wait(1.0):
        for one in peers:
            count("bytes", push(one, frame[place : place + 1]))
        place += 1


def announced(port: int, share: float) -> None:
    """1,000 frames of 16 MiB announced, of which 300 KiB come and then nothing."""
    head = struct.pack(">II", FRAME_BYTES - 4, 200) + b"{" * 200
    peers = crowd(port, round(1_000 * share))
    for one in peers:
        push(one, head)
    ready()
    left = dict.fromkeys(peers, 300000)
    block = bytes(65_536)
    while not _ENDED.wait(0.05):
        for one, rest in left.items():
            if rest > 0:
                sent = push(one, block)
                left[one] -= sent
                count("bytes", sent)


def unread(port: int, share: float) -> None:
    """Pulls of large messages, one behind the other, whose answers nobody reads."""
    pulls = request(PULL, pull_fields(LARGE, 0, 0, 0)) * 16
    peers = crowd(port, max(4, round(100 * share)))
    ready()
    while not _ENDED.wait(0.05):
        for one in peers:
            count("bytes", push(one, pulls))


def floods(port: int, share: float) -> None:
    """Connections that come and go, some in order, some by a reset, some in the middle of a frame.

    So many a second as leave the machine to others: it is the broker's time that is attacked."""
    del share
    ready()
    rng = random.Random(1)
    pause_s = 0.0005
    while not _ENDED.wait(pause_s):
        with suppress(OSError):
            peer = connect(port)
            how = rng.randrange(3)
            if how == 1:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif how == 2:
                peer.send(struct.pack(">I", 1_000) + b"x" * 500)
            peer.close()
            count("connections")


def topics(port: int, share: float) -> None:
    """10,000 new topics, 64 under way all the time."""
    wanted = round(10_000 * share)
    peer = connect(port)
    ready()
    asked, answered = 0, 0
    peer.settimeout(0.2)
    while not _ENDED.is_set() and answered < wanted:
        while asked < wanted and asked - answered < 64:
            fields = {
                "topic": f"Flood{asked}", "defaultTopic": "TBW102", "readQueueNums": 4,
                "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0, "order": "false",
            }  # fmt: skip
            peer.sendall(request(CREATE_TOPIC, fields))
            asked += 1
        with suppress(TimeoutError):
            answered += peer.recv(65_536).count(b'"opaque"')
    count("topics", answered)
    _ENDED.wait()


def giants(port: int, share: float) -> None:
    """Pulls of as many bytes as an answer may have, read and asked for again."""
    fields = {**pull_fields(LARGE, 0, 0, 0), "maxMsgNums": 32, "maxMsgBytes": 2**31 - 1}
    data = request(PULL, fields)
    peers = crowd(port, max(4, round(50 * share)))
    selector = selectors.DefaultSelector()
    for one in peers:
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ)
        push(one, data * 4)
    ready()
    asked = dict.fromkeys(peers, 0)
    while not _ENDED.is_set():
        for key, _ in selector.select(0.1):
            peer: socket.socket = key.fileobj  # type: ignore[assignment]
            with suppress(OSError):
                got = len(peer.recv(1 << 20))
                asked[peer] += got
                count("bytes", got)
                if asked[peer] > 4 << 20:
                    asked[peer] = 0
                    push(peer, data)
        # A reader as slow as a network: the machine's two cores are the good client's, too.
        _ENDED.wait(0.01)


def _ask_and_never_read(port: int, share: float, data: bytes) -> None:
    ready()
    while not _ENDED.is_set():
        peers = crowd(port, max(1, round(4 * share)))
        for one in peers:
            push(one, data)
        _ENDED.wait(1.0)
        for one in peers:
            one.close()


def queries(port: int, share: float) -> None:
    """64 queries in 15 KB, each of which finds large messages; nobody reads. Then again."""
    fields = {
        "topic": LARGE, "key": LARGE_KEY, "maxNum": 64, "beginTimestamp": 0,
        "endTimestamp": 2**63 - 1,
    }  # fmt: skip
    data = request(_QUERY, fields) * 64
    _ask_and_never_read(port, share, data)


def views(port: int, share: float) -> None:
    """64 requests for one large message by its id; nobody reads. Then again."""
    data = request(_VIEW, {"offset": 0}) * 64
    _ask_and_never_read(port, share, data)


def held(port: int, share: float) -> None:
    """300 pulls that wait, each for one of 40,000 tags: as many as a header has room for."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    tags = "||".join(map("".join, itertools.islice(itertools.product(letters, repeat=3), 40_000)))
    peers = crowd(port, max(4, round(300 * share)))
    fields = {**pull_fields("Good", 3, 0, 60_000), "subscription": tags}
    data = request(PULL, fields)
    for one in peers:
        one.setblocking(True)
        with suppress(OSError):
            one.sendall(data)
            count("pulls")
    ready()
    _ENDED.wait()


def heartbeats(port: int, share: float) -> None:
    """Heartbeats of 500 groups that nobody knows."""
    peer = connect(port)
    ready()
    peer.settimeout(0.2)
    number, per = 0, max(20, round(500 * share))
    while not _ENDED.is_set() and number < 10_000:
        producers = [{"groupName": f"G{number + one}"} for one in range(per)]
        consumers = [
            {
                "groupName": f"C{number + one}", "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [], "unitMode": False,
            }
            for one in range(per)
        ]  # fmt: skip
        number += per
        body = json.dumps(
            {"clientID": "flood", "producerDataSet": producers, "consumerDataSet": consumers}
        )
        peer.sendall(request(_HEART_BEAT, {}, body.encode()))
        while not _ENDED.is_set():
            with suppress(TimeoutError):
                if b'"opaque"' in peer.recv(65_536):
                    break
        count("groups", per)
    _ENDED.wait()


ATTACKS: dict[str, Callable[[int, float], None]] = {
    one.__name__: one
    for one in (slow, announced, unread, floods, topics, giants, queries, views, held, heartbeats)
}


def main() -> None:
    name, port, share = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    os.nice(5)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    worker = threading.Thread(target=ATTACKS[name], args=(port, share), daemon=True)
    begun = time.monotonic()
    worker.start()
    sys.stdin.read()
    _ENDED.set()
    worker.join(5)
    print(json.dumps({**_DONE, "seconds": round(time.monotonic() - begun)}), flush=True)


if __name__ == "__main__":
    main()
