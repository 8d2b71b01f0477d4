"""The compiled form does what the plain one does: the same reads, the same files, answers and
counters."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from aerobee.native.form import CompiledForm
from tests import campaign
from tests.forms import compiled_form
from tests.native.drawn import staged, topics_made, traffic
from tests.native.replayed import Outcome, Read, replayed

_SUITE = "forms of the hot path"
_HURT = "hurt requests, in both forms"
_STAGED = "staged batches, in both forms"
_REQUESTS = 1_200


@pytest.fixture(scope="module")
def form() -> CompiledForm:
    return compiled_form()


def both(
    folder: Path, reads: list[Read], form: CompiledForm, **changes: Any
) -> tuple[Outcome, Outcome]:
    outcomes = []
    for one in (None, form):
        # In one place: a broker's configuration, which some of what is drawn asks for, names it.
        outcomes.append(asyncio.run(replayed(folder, reads, one, **changes)))
        shutil.rmtree(folder)
    plain, compiled = outcomes
    return plain, compiled


def in_order(answers: bytes) -> list[bytes]:
    """The frames of some answers, sorted."""
    frames = []
    while answers:
        size = 4 + int.from_bytes(answers[:4], "big")
        frames.append(answers[:size])
        answers = answers[size:]
    return sorted(frames)


def compare(
    folder: Path, form: CompiledForm, reads: list[Read], about: str, flush: str = "ASYNC_FLUSH"
) -> int:
    """Both forms come to the same; returns how many requests the compiled one took."""
    plain, compiled = both(folder, reads, form, flush_disk_type=flush)
    for connection, expected in enumerate(plain.answers):
        answers, told = expected, compiled.answers[connection]
        if flush == "SYNC_FLUSH":
            # A sync that ends and a worker that ends are in no order.
            assert in_order(told) == in_order(answers), f"connection {connection}, {about}"
        else:
            assert told == answers, f"connection {connection}, {about}"
    assert compiled.files.keys() == plain.files.keys(), about
    for path, content in plain.files.items():
        assert compiled.files[path] == content, f"{path}, {about}"
    assert compiled.counted == plain.counted, about
    return compiled.taken


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_drawn_traffic_comes_to_the_same(tmp_path: Path, form: CompiledForm, flush: str) -> None:
    chance = campaign.rng(_SUITE)
    taken = total = 0
    for number in range(campaign.size(_SUITE)):
        seed = chance.getrandbits(32)
        reads = traffic(random.Random(seed), _REQUESTS)
        taken += compare(tmp_path / str(number), form, reads, f"seed {seed}", flush)
        total += _REQUESTS
    campaign.note(_SUITE, campaign.size(_SUITE), taken=taken, requests=total)
    # Most drawn requests are plain; a request behind another in its read is served with it.
    assert taken > total / 6


def test_staged_batches_come_to_the_same(tmp_path: Path, form: CompiledForm) -> None:
    """Chunks are looked at, and their rows published, by the one form or the other."""
    chance = campaign.rng(_STAGED)
    published = 0
    for number in range(campaign.size(_STAGED)):
        seed = chance.getrandbits(32)
        reads = staged(random.Random(seed), 12)
        plain, compiled = both(tmp_path / str(number), reads, form)
        assert compiled.files == plain.files, f"seed {seed}"
        assert _untimed(compiled) == _untimed(plain), f"seed {seed}"
        published += sum(counts[0] for counts in plain.counted["topics"].values())
    campaign.note(_STAGED, campaign.size(_STAGED), messages=published)
    assert published > 500 * campaign.size(_STAGED)


def _untimed(outcome: Outcome) -> tuple[list[bytes], bytes, dict[str, Any]]:
    """Without how far a batch has got when its decision was durable, which nothing here decides."""
    staged, sent = outcome.answers
    counted = {**outcome.counted, "connections": outcome.counted["connections"] | {"bytes_out": 0}}
    return re.findall(rb'"code":(\d+)', staged), sent, counted


#: Escapes of JSON, of fastjson's dialect, and invalid escapes.
_ESCAPES = (
    *(b"\\u0001", b"\\u0002", b"\\u0003", b"\\u0031", b"\\u00e4", b"\\ud83d\\ude00", b"\\ud83d"),
    *(b"\\n", b"\\/", b"\\\\", b'\\"', b"\\x41", b"\\x", b"\\q", b"\\u", b"\\u000", b"\\u00g1"),
)


@pytest.mark.parametrize("field", ["a", "d", "z", "i"])
def test_escapes_come_to_the_same(tmp_path: Path, form: CompiledForm, field: str) -> None:
    """In fields that the compiled form reads and in those that it does not: a header that is no
    JSON stores nothing, wherever it is wrong."""
    members = (
        b'"a":"makers","b":"Orders","c":"TBW102","d":"4","e":"0","f":"0","g":"1700000000000",'
        b'"h":"0","i":"KEYS\\u0001k","j":"0","k":"false","m":"false"'
    )
    reads = [Read(0, made, awaited=True) for made in topics_made()]
    # The first one makes the queue's file, which is not the compiled form's.
    for connection, escape in enumerate((b"", *_ESCAPES)):
        header = b'{"code":310,"extFields":{"%s":"%s",%s},"flag":0,"opaque":7,"version":399}' % (
            (field.encode(), escape, members)
        )
        frame = struct.pack(">ii", 4 + len(header), len(header)) + header
        reads.append(Read(connection, frame, awaited=not escape))
    # Only the frames with a separator of properties are taken.
    assert compare(tmp_path / "store", form, reads, field) == 2


def test_hurt_requests_come_to_the_same(tmp_path: Path, form: CompiledForm) -> None:
    """Headers with wrong bytes: a header that is not plain to the letter is for the plain form."""
    chance = campaign.rng(_HURT)
    for number in range(campaign.size(_HURT)):
        seed = chance.getrandbits(32)
        reads = traffic(random.Random(seed), 400, connections=20, hurt=0.2)
        compare(tmp_path / str(number), form, reads, f"seed {seed}")
    campaign.note(_HURT, campaign.size(_HURT))
