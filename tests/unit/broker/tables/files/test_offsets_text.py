"""A file of offsets is rendered by parts, off the loop, and has the bytes of the plain printer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile, pretty
from aerobee.broker.tables.light_queues import LightConsumerOffsets
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.protocol.frames.fastjson import dumps
from tests import campaign
from tests.inline_loop import drive


def plain(folder: Path) -> ConsumerOffsets:
    return ConsumerOffsets(JsonStateFile(folder / "consumerOffset.json"), lambda _t, _q: 1 << 40)


def light(folder: Path) -> LightConsumerOffsets:
    file = JsonStateFile(folder / "lmqConsumerOffset.json")
    before = JsonStateFile(folder / "consumerOffset.json")
    return LightConsumerOffsets(file, before, lambda _topic, _queue: 1 << 40)


@pytest.mark.parametrize("kind", [plain, light])
def test_the_bytes_are_those_of_the_plain_printer(kind: object, tmp_path: Path) -> None:
    chance = campaign.rng("offsets text")
    assert callable(kind)
    table: ConsumerOffsets = kind(tmp_path)
    table.commit("g", "T", 0, 1)
    drive(table.remove_group("g"))
    table.flush()
    assert table._file.path.read_text() == pretty(table.document())
    for _ in range(300):
        _change(table, chance)
        if chance.random() < 0.2:
            table.flush()
            assert table._file.path.read_text() == pretty(table.document())
    table.flush()
    again: ConsumerOffsets = kind(tmp_path)
    assert again.document() == table.document()


def _change(table: ConsumerOffsets, chance: random.Random) -> None:
    group = chance.choice(["g", "h", "i", "%LMQ%l", "%LMQ%m"])
    if chance.random() < 0.05:
        drive(table.remove_group(group))
        # A group that comes back goes to the table's end, and to its old place in the file: saved
        # apart, it is at the end of both.
        table.flush()
        return
    topic = chance.choice(["T", "U", "%RETRY%g", "%LMQ%l"])
    table.commit(group, topic, chance.randrange(4), chance.randrange(1 << 40))


def test_a_save_renders_what_has_changed_and_the_loop_renders_nothing(tmp_path: Path) -> None:
    """Found at 100,000 offsets: each save made the whole text on the loop."""
    table = plain(tmp_path)
    for number in range(1_000):
        table.commit("g", f"T{number}", 0, 1)
    text = table._queues_text
    changes = table.take_changes()
    assert changes is not None
    assert text.rendered == 0
    table.save(changes)
    assert text.rendered == 1_000
    table.commit("g", "T5", 0, 2)
    table.flush()
    assert text.rendered == 1_001
    again = plain(tmp_path)
    assert (again.query("g", "T5", 0), again.query("g", "T999", 0)) == (2, 1)


def test_the_listing_of_all_offsets_is_made_in_steps(tmp_path: Path) -> None:
    """Found by the rule that a turn of the loop ends: 100,000 offsets were one turn."""
    table = plain(tmp_path)
    for number in range(1_000):
        table.commit("g", f"T{number}", number % 3, number)
    table.commit("g", "T5", 0, 7)
    wanted = dumps({"offsetTable": table.all()})
    bodies: list[bytes] = []

    def listing() -> Iterator[None]:
        bodies.append((yield from table.listing()))

    steps = sum(1 for _ in listing())
    assert json.loads(bodies[0]) == json.loads(wanted)
    assert len(bodies[0]) == len(wanted)
    assert steps >= 1_000 // 64


def test_what_comes_while_a_save_runs_is_in_the_next_one(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.commit("g", "T", 0, 1)
    changes = table.take_changes()
    table.commit("g", "T", 0, 2)
    table.commit("g", "U", 0, 3)
    assert changes is not None
    table.save(changes)
    assert table.take_changes() is not None


def test_a_save_that_failed_is_made_up_for(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.commit("g", "T", 0, 1)
    table.flush()
    table.commit("g", "T", 0, 2)
    drive(table.remove_group("g"))
    table.commit("g", "U", 0, 3)
    lost = table.take_changes()
    assert lost is not None
    # The text is made, and the disk takes none of it.
    table._text.text(lost)
    table.mark_unsaved()
    table.flush()
    again = plain(tmp_path)
    assert again.pairs() == [("U", "g")]
