"""A slave copies tables: what waits for its log, what is refused, masters that do not answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee.access.files.credentials import Credentials
from aerobee.broker.cluster.registration.master_address import MasterAddress
from aerobee.broker.cluster.table_copies.config_copies import ConfigCopies
from aerobee.broker.cluster.table_copies.copied_table import CopiedTable
from aerobee.broker.cluster.table_copies.master_calls import MasterCalls
from aerobee.broker.cluster.table_copies.offset_copies import OffsetCopies
from aerobee.broker.cluster.table_copies.table_sync import Copies, TableSync, Times
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.groups import GroupTable
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.remoting.errors import RemotingConnectError
from tests.unit.broker.cluster.replication.joined import until
from tests.unit.broker.cluster.table_copies.masters import (
    ScriptedMaster,
    group_table,
    offset_table,
    topic_table,
)

QUICK = Times(ours_s=0.01, rocketmq_s=0.01, failed_s=0.01, look_s=0.002, problem_s=0.0)
PASSED_OVER = "tables of the master not copied"


class Slave:
    """Tables of a slave, whose log is where a test says."""

    def __init__(self, folder: Path, calls: MasterCalls, **limits: Any) -> None:
        self.settings = Settings.for_tests(broker_role="SLAVE", broker_name="b", **limits)
        loop = asyncio.get_running_loop()
        self.topics = TopicTable(
            self.settings, JsonStateFile(folder / "topics.json"), lambda: 1, loop
        )
        self.groups = GroupTable(
            self.settings, JsonStateFile(folder / "groups.json"), lambda: 1, loop
        )
        self.offsets = ConsumerOffsets(JsonStateFile(folder / "offsets.json"), lambda _t, _q: 99)
        self.dispatched = self.durable = 0
        self.syncs = 0
        self.follows = True
        self.delays: Any = None
        self.deletions: Any = None
        self.removed: list[tuple[str, int]] = []
        self.removed_older: list[Mapping[str, int]] = []
        self.fails: list[Exception] = []
        copies = Copies(
            ConfigCopies(
                self.settings,
                self.topics,
                self.groups,
                remove=self.remove,
                remove_older=self.remove_older,
            ),
            OffsetCopies(self.offsets, self.settings.max_offsets),
            (
                CopiedTable("delays", _no_copy, json.loads, self.take_delays),
                CopiedTable("deletions", _no_copy, json.loads, self.take_deletions, at_once=True),
            ),
        )
        self.sync = TableSync(loop, calls, copies, self, lambda: self.follows, times=QUICK)

    def take_delays(self, value: Any) -> None:
        self.delays = value

    def take_deletions(self, value: Any) -> None:
        self.deletions = value

    def sync_soon(self) -> None:
        self.syncs += 1

    async def remove(self, name: str, log_begin: int) -> bool:
        if self.fails:
            raise self.fails.pop()
        self.removed.append((name, log_begin))
        await self.topics.delete(name)
        return True

    async def remove_older(self, deletions: Mapping[str, int]) -> None:
        if self.fails:
            raise self.fails.pop()
        self.removed_older.append(deletions)

    async def seen(self, exchanges: int = 2) -> None:
        """Wait for further exchanges that go well."""
        before = self.sync.exchanges
        await until(lambda: self.sync.exchanges >= before + exchanges)


def _no_copy() -> Any:
    raise AssertionError("a slave copies nothing")


@asynccontextmanager
async def copying(
    folder: Path, master: ScriptedMaster, answer_s: float = 5.0, **limits: Any
) -> AsyncIterator[Slave]:
    calls = MasterCalls(master.known(), answer_s=answer_s)
    slave = Slave(folder, calls, **limits)
    slave.sync.start()
    try:
        yield slave
    finally:
        await slave.sync.close()
        await slave.topics.flush()
        await slave.groups.flush()


@pytest.fixture
async def master() -> AsyncIterator[ScriptedMaster]:
    scripted = ScriptedMaster()
    await scripted.start()
    yield scripted
    await scripted.close()


async def test_what_was_done_with_messages_waits_for_the_log_and_the_disk(
    tmp_path: Path, master: ScriptedMaster
) -> None:
    master.log_end = 100
    master.put(
        topics=topic_table(T=4), delays=b"[1]", deletions=b"[2]", offsets=offset_table(g={0: 7})
    )
    async with copying(tmp_path, master) as slave:
        await slave.seen()
        assert "T" in slave.topics
        assert slave.deletions == [2]
        slave.dispatched = 99
        await slave.seen()
        assert slave.delays is None
        assert slave.syncs == 0
        slave.dispatched = 100
        await until(lambda: slave.syncs)
        assert slave.delays is None
        assert not slave.offsets.of("g", "T")
        # Those that wait are not asked for again.
        assert "offsets" not in master.requests[-1].ext
        slave.durable = 100
        await until(lambda: slave.delays == [1] and slave.offsets.of("g", "T") == {0: 7})
        await until(lambda: master.requests[-1].ext.get("offsets") == "1")


async def test_what_the_log_has_reached_is_taken_when_copying_ends(
    tmp_path: Path, master: ScriptedMaster
) -> None:
    master.log_end = 100
    master.put(delays=b"[1]")
    async with copying(tmp_path, master) as slave:
        await slave.seen()
        slave.sync._task.cancel()  # type: ignore[union-attr]
        slave.dispatched = slave.durable = 100
    assert slave.delays == [1]


async def test_a_topic_leaves_when_the_log_has_come_so_far(
    tmp_path: Path, master: ScriptedMaster
) -> None:
    master.put(topics=topic_table(T=4, U=4))
    async with copying(tmp_path, master) as slave:
        await until(lambda: "U" in slave.topics)
        master.log_end = 50
        master.put(topics=topic_table(T=4))
        await slave.seen()
        assert slave.removed == []
        # It is tried again.
        slave.fails.append(OSError("no room"))
        slave.dispatched = slave.durable = 50
        await until(lambda: slave.removed)
        assert slave.removed == [("U", 50)]
        await until(lambda: "U" not in slave.topics)
        # A topic that is there again before that does not leave.
        master.log_end = 60
        master.put(topics=topic_table())
        await slave.seen()
        master.put(topics=topic_table(T=8))
        await until(lambda: slave.topics.get("T").write_queues == 8)  # type: ignore[union-attr]
        slave.dispatched = slave.durable = 60
        await slave.seen()
        assert slave.removed == [("U", 50)]


async def test_queues_of_a_topic_made_again_leave_when_the_log_has_come_so_far(
    tmp_path: Path, master: ScriptedMaster
) -> None:
    master.log_end = 50
    master.put(topics=topic_table(T=4), deletions=b'{"T": 30}')
    async with copying(tmp_path, master) as slave:
        await slave.seen()
        assert slave.deletions == {"T": 30}
        slave.dispatched = 50
        await slave.seen()
        assert slave.removed_older == []
        # It is tried again, and done once.
        slave.fails.append(OSError("no room"))
        slave.durable = 50
        await until(lambda: slave.removed_older)
        await slave.seen()
        assert slave.removed_older == [{"T": 30}]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("topics", b"rubbish"),
        ("topics", topic_table(T=70_000)),
        ("topics", topic_table(**{f"T{number}": 1 for number in range(50)})),
        ("topics", topic_table(T=2001)),
        ("topics", topic_table(T=1).replace(b'"perm": 6', b'"perm": 77')),
        ("groups", b'{"subscriptionGroupTable": 5}'),
        ("groups", group_table(*[f"g{number}" for number in range(50)])),
        ("groups", group_table("g").replace(b'"g"}', b'"g", "retryMaxTimes": 1e99}')),
        ("offsets", offset_table(g={0: 1}).replace(b"T@", b"T")),
        ("offsets", offset_table(g=dict.fromkeys(range(50), 1))),
        ("delays", b"\xff"),
    ],
)
async def test_a_table_that_cannot_be_read_is_refused_whole_and_asked_for_again(
    tmp_path: Path,
    master: ScriptedMaster,
    caplog: pytest.LogCaptureFixture,
    name: str,
    table: bytes,
) -> None:
    right = {
        "topics": topic_table(Right=4),
        "groups": group_table("right"),
        "offsets": offset_table(right={0: 7}),
        "delays": b"[1]",
    }
    master.put(**{**right, name: table})
    limits = {"max_topics": 30, "max_queues": 2000, "max_groups": 40, "max_offsets": 40}
    async with copying(tmp_path, master, **limits) as slave:
        before = len(slave.topics), len(slave.groups)
        await until(lambda: master.count() > 3)
        await until(lambda: caplog.text.count(PASSED_OVER) == 1)
        assert slave.sync.problem is not None
        assert f"its table of {name} cannot be taken" in slave.sync.problem
        taken = {
            "topics": len(slave.topics) - before[0],
            "groups": len(slave.groups) - before[1],
            "offsets": len(slave.offsets.pairs()),
            "delays": int(slave.delays is not None),
        }
        assert taken == {**dict.fromkeys(right, 1), name: 0}
        master.put(**right)
        await slave.seen()
        assert caplog.text.count(PASSED_OVER) == 1
        assert "Right" in slave.topics
        assert slave.offsets.of("right", "T") == {0: 7}


async def test_a_table_that_cannot_be_saved_is_taken_later(
    tmp_path: Path, master: ScriptedMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True

    def save(_file: JsonStateFile, _text: object) -> None:
        if full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(JsonStateFile, "save", save)
    master.put(topics=topic_table(T=4))
    async with copying(tmp_path, master) as slave:
        await until(lambda: master.count() > 3)
        assert "T" not in slave.topics
        assert "disk is full" in str(slave.sync.problem)
        full = False
        await until(lambda: "T" in slave.topics)


async def test_a_master_that_refuses_or_says_rubbish_changes_nothing(
    tmp_path: Path, master: ScriptedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    master.put(topics=topic_table(T=4))
    master.answer = master.refuse
    async with copying(tmp_path, master) as slave:
        await until(lambda: master.count() > 3)
        assert "code 1: AclException" in str(slave.sync.problem)
        master.answer = lambda command: encode_success(command, b"\x05rubbish")
        await until(lambda: "cannot be read" in str(slave.sync.problem))
        master.answer = lambda command: encode_success(
            command, b"\x05topics\xff\xff\xff\xff", {"logBegin": "0", "logEnd": "0"}
        )
        await until(lambda: "tables of the master cannot be read" in str(slave.sync.problem))
        assert "T" not in slave.topics
        assert len(caplog.records) < 6
        master.answer = master.answer_of_ours
        await until(lambda: "T" in slave.topics)


async def test_a_silent_master_and_one_that_hangs_up_are_asked_again(
    tmp_path: Path, master: ScriptedMaster
) -> None:
    master.put(topics=topic_table(T=4))
    master.answer = lambda _command: None
    async with copying(tmp_path, master, answer_s=0.05) as slave:
        await until(lambda: master.count() > 2)
        assert slave.sync.problem is not None
        master.answer = master.answer_of_ours
        await until(lambda: "T" in slave.topics)
        master.put(topics=topic_table(T=5))
        for connection in list(master.connections):
            connection.close("cut")  # type: ignore[arg-type]
        await until(lambda: slave.topics.get("T").write_queues == 5)  # type: ignore[union-attr]


async def test_nothing_is_asked_while_the_log_is_not_taken(
    tmp_path: Path, master: ScriptedMaster
) -> None:
    master.put(topics=topic_table(T=4))
    calls = MasterCalls(master.known())
    slave = Slave(tmp_path, calls)
    slave.follows = False
    slave.sync.start()
    await until(lambda: "not taken from the master" in str(slave.sync.problem))
    assert not master.requests
    slave.follows = True
    await until(lambda: "T" in slave.topics)
    await slave.sync.close()


async def test_calls_are_signed_and_go_where_the_master_is_now(master: ScriptedMaster) -> None:
    known = MasterAddress(Settings.for_tests(broker_role="SLAVE"), ["names"])
    calls = MasterCalls(known, credentials=Credentials("us", "secret"))
    with pytest.raises(RemotingConnectError, match="no name server knows"):
        await calls.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    other = ScriptedMaster()
    await other.start()
    known.heard("names", other.address, None)
    answers = [calls.call(RequestCode.REPLICA_TABLES) for _ in range(3)]
    await asyncio.gather(*answers)
    assert calls.connections == len(other.connections) == 1
    assert all(_is_signed(command) for command in other.requests)
    known.heard("names", master.address, None)
    await calls.call(RequestCode.REPLICA_TABLES)
    assert calls.connections == 2
    assert master.count() == 1
    calls.close()
    await other.close()


def _is_signed(command: Command) -> bool:
    return command.ext["AccessKey"] == "us" and bool(command.ext["Signature"])


async def test_a_task_that_ends_by_a_bug_is_seen(
    tmp_path: Path, master: ScriptedMaster, caplog: pytest.LogCaptureFixture
) -> None:
    async with copying(tmp_path, master) as slave:
        slave.sync._fetch = None  # type: ignore[assignment]
        with caplog.at_level(logging.CRITICAL):
            await until(lambda: "copying the tables of the master has stopped" in caplog.text)


async def test_a_slave_knows_where_its_masters_log_begins(
    tmp_path: Path, master: ScriptedMaster
) -> None:
    async with copying(tmp_path, master) as slave:
        await slave.seen()
        assert slave.sync.master_first == 0
        master.log_first = 4096
        await slave.seen()
        assert slave.sync.master_first == 4096
