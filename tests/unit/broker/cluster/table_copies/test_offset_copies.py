"""The offsets of a master on its slave, and those of slaves on a master that starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee.broker.cluster.comparison.master_requests import MasterRequests
from aerobee.broker.cluster.table_copies import slave_offsets
from aerobee.broker.cluster.table_copies.offset_copies import OffsetCopies
from aerobee.broker.cluster.table_copies.slave_offsets import Asking, take_from_slaves, take_larger
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.offsets import ConsumerOffsets, OffsetTable
from aerobee.protocol.frames.command import encode_success
from tests.unit.broker.cluster.table_copies.masters import ScriptedMaster, as_json, offset_table

END = 50


class Bench:
    def __init__(self, folder: Path, most: int = 100) -> None:
        file = JsonStateFile(folder / "offsets.json")
        self.offsets = ConsumerOffsets(file, lambda _topic, _queue: END)
        self.copies = OffsetCopies(self.offsets, most)

    def commit(self, group: str, **queues: int) -> None:
        for queue, offset in queues.items():
            assert self.offsets.commit(group, "T", int(queue[1:]), offset)

    def take(self, table: OffsetTable, *, first: bool = False, whole: bool = True) -> None:
        for _ in self.copies.take(table, first=first, whole=whole):
            pass

    def of(self, group: str) -> dict[int, int]:
        return dict(self.offsets.of(group, "T"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_first_copy_takes_the_larger_offset_of_each_queue(bench: Bench) -> None:
    bench.commit("g", q0=7, q1=2, q3=4)
    bench.commit("alone", q0=9)
    bench.take({("T", "g"): {0: 3, 1: 6, 2: 1}, ("T", "h"): {0: 1}}, first=True)
    assert bench.of("g") == {0: 7, 1: 6, 2: 1, 3: 4}
    assert bench.of("h") == {0: 1}
    assert bench.of("alone") == {0: 9}


def test_what_was_larger_stays_until_the_master_moves(bench: Bench) -> None:
    bench.commit("g", q0=7, q1=8)
    bench.commit("alone", q0=9)
    said = {("T", "g"): {0: 3, 1: 4}}
    bench.take(said, first=True)
    bench.take(said)
    assert bench.of("g") == {0: 7, 1: 8}
    # A consumer commits, and a group is reset.
    bench.take({("T", "g"): {0: 5, 1: 4}})
    assert bench.of("g") == {0: 5, 1: 8}
    bench.take({("T", "g"): {0: 5, 1: 0}, ("T", "alone"): {0: 1}})
    assert bench.of("g") == {0: 5, 1: 0}
    assert bench.of("alone") == {0: 1}
    # Nothing is kept any more.
    bench.take({})
    assert bench.offsets.pairs() == []
    assert bench.offsets.count() == 0


def test_later_copies_replace_as_a_whole_by_smaller_offsets_too(bench: Bench) -> None:
    bench.take({("T", "g"): {0: 7, 1: 7}, ("T", "h"): {0: 7}}, first=True)
    bench.take({("T", "g"): {0: 2}})
    assert bench.of("g") == {0: 2}
    assert bench.of("h") == {}


def test_rocketmq_names_no_group_that_was_deleted_and_others_stay(tmp_path: Path) -> None:
    bench = Bench(tmp_path, most=3)
    bench.take({("T", "g"): {0: 7}, ("T", "h"): {0: 7}}, first=True, whole=False)
    bench.take({("T", "g"): {0: 2}}, whole=False)
    assert (bench.of("g"), bench.of("h")) == ({0: 2}, {0: 7})
    # While there is room.
    bench.take({("T", "g"): {0: 2, 1: 1, 2: 1}}, whole=False)
    bench.take({("T", "g"): {0: 2, 1: 1, 2: 1}}, whole=False)
    assert bench.of("h") == {}


def test_what_is_copied_is_in_the_file(bench: Bench, tmp_path: Path) -> None:
    bench.take({("T", "g"): {0: 7}, ("T", "g-start"): {0: 9}}, first=True)
    assert (bench.offsets.count(), bench.offsets.starts) == (1, 1)
    bench.offsets.flush()
    again = Bench(tmp_path)
    assert again.of("g") == {0: 7}
    again.take({})
    again.offsets.flush()
    assert Bench(tmp_path).offsets.pairs() == []


def test_a_copy_leaves_out_what_this_broker_could_not_have(bench: Bench) -> None:
    table = {"T@g": {"0": 3, "1": -1, "-1": 3}, "T@gé": {"0": 1}, "T/x@g": {"0": 1}}
    body = as_json({"offsetTable": table, "lmqOffsetTable": {"%LMQ%a@%LMQ%g": 7}})
    assert bench.copies.read(body) == {("T", "g"): {0: 3}, ("%LMQ%a", "%LMQ%g"): {0: 7}}
    with pytest.raises(ValueError, match="101 offsets"):
        bench.copies.read(offset_table(g=dict.fromkeys(range(101), 1)))


# --- a master that starts


async def test_a_master_takes_larger_offsets_up_to_the_queues_ends(bench: Bench) -> None:
    bench.commit("g", q0=7, q1=2)
    table = {("T", "g"): {0: 3, 1: 6, 2: END + 9}, ("T", "new"): {0: 1, 1: 0}}
    taken = await take_larger(table, bench.offsets, lambda _topic, _queue: END)
    assert taken == 3
    assert bench.of("g") == {0: 7, 1: 6, 2: END}
    assert bench.of("new") == {0: 1}


async def has_the_log(_slave: MasterRequests) -> bool:
    return True


@pytest.fixture
async def slave() -> AsyncIterator[ScriptedMaster]:
    scripted = ScriptedMaster()
    await scripted.start()
    yield scripted
    await scripted.close()


@pytest.mark.parametrize("kind", ["refuses", "rubbish", "silent", "away"])
async def test_a_slave_that_does_not_answer_is_passed_over(
    bench: Bench,
    slave: ScriptedMaster,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = ScriptedMaster()
    await good.start()
    good.answer = lambda command: encode_success(command, offset_table(g={0: 9}))
    if kind == "refuses":
        slave.answer = slave.refuse
    elif kind == "rubbish":
        slave.answer = lambda command: encode_success(command, b'{"offsetTable": [')
    elif kind == "silent":
        slave.answer = lambda _command: None
    else:
        await slave.close()
    slaves = [slave.address, good.address, "192.0.2.1:10911"]

    async def knows(*_: object) -> list[str]:
        return slaves

    monkeypatch.setattr(slave_offsets, "_slaves_at", knows)
    asking = Asking("b", "192.0.2.1:10911", has_the_log)
    taken = await take_from_slaves(
        asking, ["names"], bench.offsets, lambda _t, _q: END, within_s=0.3
    )
    assert taken == 1
    assert bench.of("g") == {0: 9}
    assert "192.0.2.1" not in caplog.text
    await good.close()
