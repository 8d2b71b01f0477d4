"""The compiled form does what the plain one does: the same reads, the same files, answers and
counters."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from aerobee.native.form import CompiledForm, chosen
from tests import campaign
from tests.unit.native.drawn import traffic
from tests.unit.native.replayed import Outcome, Read, replayed

_SUITE = "forms of the hot path"
_REQUESTS = 1_200


@pytest.fixture(scope="module")
def form() -> CompiledForm:
    found = chosen()
    if found is None:
        pytest.skip("the compiled form was not built, or AEROBEE_NATIVE is off")
    return found


def both(
    folder: Path, reads: list[Read], form: CompiledForm, **changes: Any
) -> tuple[Outcome, Outcome]:
    plain = asyncio.run(replayed(folder / "plain", reads, None, **changes))
    compiled = asyncio.run(replayed(folder / "compiled", reads, form, **changes))
    return plain, compiled


def in_order(answers: bytes) -> list[bytes]:
    """The frames of some answers, sorted."""
    frames = []
    while answers:
        size = 4 + int.from_bytes(answers[:4], "big")
        frames.append(answers[:size])
        answers = answers[size:]
    return sorted(frames)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_drawn_traffic_comes_to_the_same(tmp_path: Path, form: CompiledForm, flush: str) -> None:
    chance = campaign.rng(_SUITE)
    taken = total = 0
    for number in range(campaign.size(_SUITE)):
        seed = chance.getrandbits(32)
        reads = traffic(random.Random(seed), _REQUESTS)
        plain, compiled = both(tmp_path / str(number), reads, form, flush_disk_type=flush)
        for connection, expected in enumerate(plain.answers):
            answers, told = expected, compiled.answers[connection]
            if flush == "SYNC_FLUSH":
                # A sync that ends and a worker that ends are in no order.
                answers, told = in_order(answers), in_order(told)
            assert told == answers, f"connection {connection}, seed {seed}"
        assert compiled.files.keys() == plain.files.keys(), f"seed {seed}"
        for path, content in plain.files.items():
            assert compiled.files[path] == content, f"{path}, seed {seed}"
        assert compiled.counted == plain.counted, f"seed {seed}"
        taken += compiled.taken
        total += _REQUESTS
    campaign.note(_SUITE, campaign.size(_SUITE), taken=taken, requests=total)
    # Most of what is drawn is plain; what comes behind another in its read is served with it.
    assert taken > total / 6
