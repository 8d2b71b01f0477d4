"""Bytes that arrive stay side by side, whatever comes and goes."""

import random

import pytest

from aerobee.store.log.replication import incoming_bytes
from aerobee.store.log.replication.incoming_bytes import IncomingBytes


@pytest.mark.parametrize("seed", range(5))
def test_bytes_come_and_go_in_their_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_bytes, "_FIRST_BYTES", 256)
    monkeypatch.setattr(incoming_bytes, "_LEAST_ROOM", 32)
    chance = random.Random(seed)
    incoming, model, start = IncomingBytes(1000), b"", 1000
    for _ in range(2_000):
        if chance.random() < 0.6:
            room = incoming.room(chance.randint(1, 400))
            size = chance.randint(1, len(room))
            data = chance.randbytes(size)
            room[:size] = data
            incoming.added(size)
            model += data
        elif model:
            count = chance.randint(1, len(model))
            incoming.drop(start + count)
            start, model = start + count, model[count:]
        assert (bytes(incoming.view), incoming.start) == (model, start)
        assert incoming.landed == start + len(model)


def test_memory_has_a_bound_and_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_bytes, "_FIRST_BYTES", 64)
    monkeypatch.setattr(incoming_bytes, "MOST_BYTES", 512)
    incoming = IncomingBytes(0)
    while len(room := incoming.room(100)):
        incoming.added(len(room))
    assert len(incoming) == 512
    incoming.begin(7, b"\0")
    assert (incoming.start, incoming.landed, len(incoming._memory)) == (7, 8, 64)
