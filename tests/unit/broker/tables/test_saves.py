"""When the tables of topics and groups are saved, how often, and what is done for it: counted."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.requests.administration.topics_and_groups import TopicRequests
from aerobee.broker.requests.clients.heartbeats import ClientRequests
from aerobee.broker.tables import config_table
from aerobee.broker.tables.config_table import ConfigTable
from aerobee.broker.tables.files.entry_text import TableText, entry_text
from aerobee.broker.tables.files.state_file import JsonStateFile, pretty
from aerobee.broker.tables.groups import GroupConfig, GroupTable
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.file_replacement import Content
from aerobee.protocol.bodies.topics import DataVersion, TopicConfig
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.fastjson import dumps, loads
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.remoting.turns import Steps
from aerobee.store.errors import StoreNotWritable
from tests.inline_loop import INLINE, drive
from tests.unit.broker.second_step.second_step_support import no_deletions
from tests.unit.broker.tables.clients_support import (
    BODIES,
    NOW_MS,
    Endless,
    Peer,
    Tables,
    heartbeat_body,
    no_pulls_held,
    request,
)


class CountedFile(JsonStateFile):
    """Counts its saves, the threads that did them, and may be held up or full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.saves = 0
        # The texts of the last two that came in pieces.
        self.pieces: deque[list[bytes]] = deque(maxlen=2)
        self.threads: set[int] = set()
        self.is_full = False
        self.may_save = threading.Event()
        self.may_save.set()

    def save(self, text: str | Content) -> None:
        self.may_save.wait()
        self.saves += 1
        if isinstance(text, list):
            self.pieces.append(text)
        self.threads.add(threading.get_ident())
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        super().save(text)


class World:
    """Both tables on a running loop."""

    def __init__(self, path: Path) -> None:
        self.pool = ThreadPoolExecutor(2)
        loop = asyncio.get_running_loop()
        self.settings = Settings.for_tests(
            broker_name="b-a",
            cluster_name="C1",
            max_topics=20_000,
            max_groups=20_000,
            max_queues=200_000,
            auto_create_per_minute=20_000,
        )
        self.topics_file = CountedFile(path / "topics.json")
        self.groups_file = CountedFile(path / "subscriptionGroup.json")
        self.topics = TopicTable(self.settings, self.topics_file, lambda: NOW_MS, loop, self.pool)
        self.groups = GroupTable(self.settings, self.groups_file, lambda: NOW_MS, loop, self.pool)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    for file in (world.topics_file, world.groups_file):
        file.is_full = False
        file.may_save.set()
    await world.topics.flush()
    await world.groups.flush()
    world.pool.shutdown()


async def serve(steps: Steps) -> bytes | None:
    """Go through a handler's steps as the connections do."""
    try:
        while True:
            waits_for = next(steps)
            if waits_for is None:
                await asyncio.sleep(0)
            else:
                await asyncio.wait([waits_for])
    except StopIteration as ended:
        answer: bytes | None = ended.value
        return answer


def old_form(table: ConfigTable[Any], key: str) -> dict[str, Any]:
    entries = {one.name: one.to_json() for one in table.all()}
    return {"dataVersion": table.data_version.to_json(), key: entries}


def test_the_file_is_as_the_printer_of_the_whole_writes_it(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.topics.update(TopicConfig("T1", 4, 4)).result()
    tables.topics.update(TopicConfig("T2", 3, 5, 4, 'MULTI"\\\u4e2d\u0001', 1, True)).result()
    tables.topics.update(TopicConfig("T1", 8, 8)).result()
    tables.topics.delete("SELF_TEST_TOPIC").result()
    tables.groups.get("g1")
    tables.groups.update(GroupConfig("g1", consume_enable=False)).result()
    for table, name, key in (
        (tables.topics, "topics.json", "topicConfigTable"),
        (tables.groups, "subscriptionGroup.json", "subscriptionGroupTable"),
    ):
        assert (tmp_path / name).read_text("utf-8") == pretty(old_form(table, key))
        assert drive(table.listing()) == dumps(old_form(table, key))


def test_the_text_of_many_entries_keeps_their_order_whatever_changes() -> None:
    """Against a plain dict, over changes that fill, empty and refill blocks."""
    random = Random(7)
    text, entries = TableText("t"), dict[str, TopicConfig]()
    for turn in range(3_000):
        name = f"T{random.randrange(600)}"
        if turn > 1_500 and random.random() < 0.7:
            known = entries.pop(name, None)
            assert text.put(name, None) == (None if known is None else entry_text(known))
        else:
            entry = TopicConfig(name, random.randrange(9))
            text.put(name, entry_text(entry))
            entries[name] = entry
        if turn % 250 == 0:
            table = {name: entry.to_json() for name, entry in entries.items()}
            whole = pretty({"dataVersion": DataVersion(5, turn).to_json(), "t": table})
            assert b"".join(text.document(DataVersion(5, turn))).decode() == whole
    assert len(text._blocks) < 10


def test_an_empty_table_is_written_as_the_printer_does(tmp_path: Path) -> None:
    version = DataVersion(5, 1)
    text = b"".join(TableText("topicConfigTable").document(version))
    assert text.decode() == pretty({"dataVersion": version.to_json(), "topicConfigTable": {}})


async def test_a_hundred_topics_at_once_cost_two_saves(world: World) -> None:
    told: list[list[TopicConfig]] = []
    world.topics.subscribe(told.append)
    first = world.topics.create_on_send("T000", "TBW102", 4, 0)
    assert first is not None
    world.topics_file.may_save.clear()
    await asyncio.sleep(0)  # the first save is under way, with one topic
    others = [world.topics.create_on_send(f"T{n:03}", "TBW102", 4, 0) for n in range(1, 100)]
    assert world.topics.get("T000") is world.topics.get("T099") is None
    world.topics_file.may_save.set()
    for creation in (first, *others):
        assert creation is not None
        await creation
    assert world.topics_file.saves == 2
    assert threading.get_ident() not in world.topics_file.threads
    assert world.topics.data_version.counter == 2
    assert [len(topics) for topics in told] == [1, 99]
    again = TopicTable(world.settings, JsonStateFile(world.topics_file.path), lambda: 0, INLINE)
    assert {topic.name for topic in again.all()} == {topic.name for topic in world.topics.all()}


async def test_a_topic_that_is_being_made_is_made_once_for_all_who_ask(world: World) -> None:
    asked = [world.topics.create_on_send("T", "TBW102", 4, 0) for _ in range(9)]
    asked += [world.topics.create_retry("T", 1) for _ in range(9)]
    assert world.topics.get("T") is None
    for creation in asked:
        assert creation is not None
        await creation
    assert world.topics.get("T") == TopicConfig("T", 4, 4)
    assert world.topics_file.saves == 1
    assert world.topics.created_on_send == 1
    assert world.topics.create_retry("T", 1) is None


async def test_what_a_full_disk_refuses_is_refused_to_all_and_changes_nothing(world: World) -> None:
    await world.topics.update(TopicConfig("T1", 4, 4))
    version, stored = world.topics.data_version, world.topics_file.path.read_bytes()
    told: list[list[TopicConfig]] = []
    world.topics.subscribe(told.append)
    world.topics_file.is_full = True
    changes = [
        world.topics.update(TopicConfig("T1", 9, 9)),
        world.topics.create_on_send("T2", "TBW102", 4, 0),
        world.topics.delete("BenchmarkTest"),
    ]
    for change in changes:
        assert change is not None
        with pytest.raises(StoreNotWritable, match=r"disk is full.*topics\.json"):
            await change
    assert world.topics.get("T1") == TopicConfig("T1", 4, 4)
    assert world.topics.get("T2") is None
    assert "BenchmarkTest" in world.topics
    assert (world.topics.data_version, told) == (version, [])
    assert world.topics.expected == len(world.topics)
    assert world.topics.expected_weight == world.topics.weight
    assert world.topics_file.path.read_bytes() == stored
    world.topics_file.is_full = False
    await world.topics.update(TopicConfig("T3"))
    # A refused change does not come with the next save.
    again = TopicTable(world.settings, JsonStateFile(world.topics_file.path), lambda: 0, INLINE)
    assert again.get("T1") == TopicConfig("T1", 4, 4)
    assert again.get("T2") is None


async def test_limits_count_what_is_being_made(tmp_path: Path) -> None:
    world = World(tmp_path)
    settings = world.settings.with_changes(
        max_topics=len(world.topics) + 2, max_queues=world.topics.weight + 12
    )
    requests = TopicRequests(
        settings,
        SimpleNamespace(topics=world.topics, groups=world.groups, offsets=None),
        stats=None,  # type: ignore[arg-type]
        store=None,  # type: ignore[arg-type]
        on_loop=lambda call: call(),
        later=None,  # type: ignore[arg-type]
        bodies=BODIES,
        deleted=no_deletions(),
        removal=None,  # type: ignore[arg-type]
    )

    def create(name: str, queues: int) -> Steps:
        ext = {"topic": name, "defaultTopic": "TBW102", "perm": 6}
        ext |= {"readQueueNums": queues, "writeQueueNums": queues}
        return requests.create_topic(
            Peer(1).connection, request(17, {**ext, "topicFilterType": "SINGLE_TAG"})
        )

    first = create("A", 10)
    assert next(first) is not None
    with pytest.raises(BadRequest, match="queues in all topics"):
        next(create("B", 3))
    second = create("B", 2)
    assert next(second) is not None
    with pytest.raises(BadRequest, match="topics, the limit"):
        next(create("C", 1))
    await world.topics.flush()
    await serve(first)
    await serve(second)
    assert world.topics.expected == len(world.topics) == settings.max_topics
    world.pool.shutdown()


async def test_groups_made_by_consumers_are_there_at_once_and_saved_together(world: World) -> None:
    made = [world.groups.get(f"g{n}") for n in range(100)]
    assert None not in made
    assert world.groups.find("g99") == GroupConfig("g99")
    await world.groups.flush()
    assert world.groups_file.saves == 1
    document = loads(world.groups_file.path.read_bytes())
    assert {f"g{n}" for n in range(100)} <= set(document["subscriptionGroupTable"])


async def test_a_group_that_is_made_during_a_save_is_in_the_next(world: World) -> None:
    world.groups_file.may_save.clear()
    world.groups.get("g1")
    await asyncio.sleep(0)
    world.groups.get("g2")
    world.groups_file.may_save.set()
    await world.groups.flush()
    assert world.groups_file.saves == 2
    table = loads(world.groups_file.path.read_bytes())["subscriptionGroupTable"]
    assert {"g1", "g2"} <= set(table)


async def test_groups_that_could_not_be_written_are_in_the_next_save(world: World) -> None:
    world.groups_file.is_full = True
    world.groups.get("g1")
    await world.groups.flush()
    assert world.groups.find("g1") is not None
    assert not world.groups_file.path.exists()
    world.groups_file.is_full = False
    await world.groups.update(GroupConfig("g2", retry_max_times=3))
    table = loads(world.groups_file.path.read_bytes())["subscriptionGroupTable"]
    assert {"g1", "g2"} <= set(table)


async def test_a_group_that_is_being_configured_is_not_made_by_its_consumers(world: World) -> None:
    change = world.groups.update(GroupConfig("g", retry_max_times=3))
    assert world.groups.find("g") is None
    assert world.groups.get("g") == GroupConfig("g")
    await change
    assert world.groups.get("g") == GroupConfig("g", retry_max_times=3)


async def test_a_heartbeat_with_500_groups_costs_two_saves_of_each_table(tmp_path: Path) -> None:
    world = World(tmp_path)
    tables = Tables(tmp_path / "clients")
    tables.topics, tables.groups = world.topics, world.groups
    requests = ClientRequests(
        world.settings, tables, no_pulls_held(), turns=Endless(), bodies=BODIES
    )
    body = heartbeat_body("c1", {f"g{n}": {"T": "*"} for n in range(500)})
    peer = Peer(1)
    answer = await serve(requests.heartbeat(peer.connection, request(34, body=body)))
    assert answer is not None
    assert FrameDecoder().feed(answer)[0].code == 0
    await world.groups.flush()
    assert 1 <= world.topics_file.saves <= 2
    assert 1 <= world.groups_file.saves <= 2
    assert threading.get_ident() not in world.topics_file.threads | world.groups_file.threads
    assert world.topics.get("%RETRY%g499") == TopicConfig("%RETRY%g499", 1, 1)
    assert len(peer.notified()) == 500
    live = tables.clients.consumer_group("g499")
    assert live is not None
    assert live.client_ids() == ["c1"]
    saves = world.topics_file.saves
    await serve(requests.heartbeat(peer.connection, request(34, body=body)))
    assert world.topics_file.saves == saves
    world.pool.shutdown()


async def test_a_heartbeat_of_many_groups_is_served_in_steps(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    settings = Settings.for_tests()
    requests = ClientRequests(settings, tables, no_pulls_held(), turns=Endless(), bodies=BODIES)
    body = heartbeat_body("c1", {f"g{n}": {"T": "*"} for n in range(80)})
    members: list[int] = []
    for step in requests.heartbeat(Peer(1).connection, request(34, body=body)):
        assert step is None or step.done()
        members.append(sum(tables.clients.consumer_group(f"g{n}") is not None for n in range(80)))
    grown = [after - before for before, after in pairwise(members)]
    assert max(grown) == 8


async def test_a_client_that_leaves_during_its_heartbeat_is_in_no_group(world: World) -> None:
    tables = Tables(world.topics_file.path.parent / "c")
    tables.topics, tables.groups = world.topics, world.groups
    requests = ClientRequests(
        world.settings, tables, no_pulls_held(), turns=Endless(), bodies=BODIES
    )
    peer = Peer(1)
    steps = requests.heartbeat(
        peer.connection, request(34, body=heartbeat_body("c1", {"g": {"T": "*"}}))
    )
    assert next(steps) is not None
    requests.connection_closed(peer.connection)
    peer.closed = True
    await world.topics.flush()
    assert await serve(steps) is None
    assert tables.clients.consumer_group("g") is None


async def test_a_table_that_could_not_be_saved_says_so_until_it_can(world: World) -> None:
    """Readiness asks for it; nobody has to change something before it is green again."""
    world.topics_file.is_full = True
    refused = world.topics.update(TopicConfig("refused"))
    with pytest.raises(StoreNotWritable, match="the disk is full"):
        await refused
    assert "topics.json cannot be saved: the disk is full" in str(world.topics.failure)
    assert "refused" not in world.topics
    world.topics.retry()
    await world.topics.flush()
    assert world.topics.failure is not None
    world.topics_file.is_full = False
    world.topics.retry()
    await world.topics.flush()
    assert world.topics.failure is None
    saves = world.topics_file.saves
    world.topics.retry()
    await world.topics.flush()
    assert world.topics_file.saves == saves


async def test_why_a_change_was_not_kept_is_told_whatever_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "the broker failed on this request (FileNotFoundError); see its log" """

    def gone() -> None:
        raise FileNotFoundError("the store is gone")

    monkeypatch.setattr(world.topics_file, "check", gone)
    refused = world.topics.update(TopicConfig("refused"))
    with pytest.raises(StoreNotWritable, match="the store is gone"):
        await refused
    assert "refused" not in world.topics


@pytest.mark.parametrize("before", [100, 10_000])
async def test_one_more_entry_costs_the_same_however_many_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    for number in range(before):
        world.topics.update(TopicConfig(f"T{number}"))
        world.groups.get(f"g{number}")
    await world.topics.flush()
    await world.groups.flush()
    made: list[str] = []
    entry_text = config_table.entry_text

    def counted(entry: Any) -> bytes:
        made.append(entry.name)
        return entry_text(entry)

    monkeypatch.setattr(config_table, "entry_text", counted)
    weighed: list[TopicConfig] = []
    weight = world.topics._weight
    monkeypatch.setattr(world.topics, "_weight", lambda one: weighed.append(one) or weight(one))
    creation = world.topics.create_on_send("new", "TBW102", 4, 0)
    assert creation is not None
    await creation
    world.groups.get("new_group")
    await world.groups.flush()
    assert made == ["new", "new_group"]
    assert len(weighed) <= 4
    for file in (world.topics_file, world.groups_file):
        last, now = ({id(piece): len(piece) for piece in pieces} for pieces in file.pieces)
        copied = [size for piece, size in now.items() if piece not in last]
        assert len(copied) <= 3  # the head, the block of the new entry, and the end
        assert sum(copied) < 64 << 10


async def test_the_files_of_a_large_table_are_used_again(world: World) -> None:
    """A new file of some megabytes costs the kernel more than all that is done here."""
    for number in range(2_000):
        world.topics.update(TopicConfig(f"T{number}"))
    await world.topics.flush()
    seen = set()
    for number in range(8):
        await world.topics.update(TopicConfig(f"one{number}"))
        seen.add(world.topics_file.path.stat().st_ino)
    assert len(seen) == 3
    again = TopicTable(world.settings, JsonStateFile(world.topics_file.path), lambda: 0, INLINE)
    assert len(again) == len(world.topics)


async def test_a_table_is_listed_once_for_all_who_ask(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1_500):
        world.topics.update(TopicConfig(f"T{number}"))
    await world.topics.flush()
    made: list[Any] = []
    encode = config_table._wire_text
    monkeypatch.setattr(config_table, "_wire_text", lambda one: made.append(one) or encode(one))
    entries = len(world.topics)
    bodies = await asyncio.gather(*(serve(world.topics.listing()) for _ in range(512)))
    assert len(set(map(id, bodies))) == 1
    assert len(made) == entries
    await world.topics.update(TopicConfig("one"))
    body = await serve(world.topics.listing())
    assert len(made) == entries + 1
    assert body is not None
    assert len(loads(body)["topicConfigTable"]) == entries + 1


async def test_a_long_listing_is_made_in_steps_and_of_one_state(world: World) -> None:
    for number in range(300):
        world.topics.update(TopicConfig(f"T{number}", 4, 4))
    await world.topics.flush()
    version = world.topics.data_version
    steps = world.topics.listing()
    assert next(steps) is None
    await world.topics.update(TopicConfig("T299", 9, 9))
    body = await serve(steps)
    assert body is not None
    document = loads(body)
    assert document["dataVersion"] == version.to_json()
    assert document["topicConfigTable"]["T299"]["readQueueNums"] == 4
    body = await serve(world.topics.listing())
    assert body is not None
    assert loads(body)["topicConfigTable"]["T299"]["readQueueNums"] == 9


# --- deletion -------------------------------------------------------------------------------------


async def test_a_topic_leaves_the_file_before_memory(world: World) -> None:
    await world.topics.update(TopicConfig("T", 4, 4))
    told: list[list[TopicConfig]] = []
    world.topics.subscribe(told.append)
    await world.topics.withdraw("T")
    assert b'"T"' not in world.topics_file.path.read_bytes()
    assert world.topics.get("T") is not None
    assert told == []
    version = world.topics.data_version
    leaving = world.topics.under_way("T")
    assert leaving is not None
    assert world.topics.forget("T")
    assert leaving.done()
    assert world.topics.get("T") is None
    assert told == [[]]
    assert world.topics.data_version.counter > version.counter
    assert not world.topics.forget("T")


async def test_the_name_of_a_topic_that_has_left_memory_is_taken_until_it_is_forgotten(
    world: World,
) -> None:
    await world.topics.update(TopicConfig("T", 4, 4))
    told: list[list[TopicConfig]] = []
    world.topics.subscribe(told.append)
    await world.topics.withdraw("T")
    assert world.topics.leave("T")
    assert world.topics.get("T") is None
    leaving = world.topics.create_on_send("T", "TBW102", 4, 0)
    assert leaving is world.topics.under_way("T")
    assert leaving is not None
    assert not leaving.done()
    assert not world.topics.leave("T")
    assert world.topics.forget("T")
    assert leaving.done()
    assert told == [[]]
    world.topics.reserve("U")
    assert not world.topics.leave("U")
    assert world.topics.under_way("U") is not None
    assert world.topics.forget("U")
    assert world.topics.under_way("U") is None


async def test_a_topic_that_cannot_leave_the_file_stays(world: World) -> None:
    await world.topics.update(TopicConfig("T", 4, 4))
    world.topics_file.is_full = True
    with pytest.raises(StoreNotWritable):
        await world.topics.withdraw("T")
    assert world.topics.under_way("T") is None
    assert not world.topics.forget("T")
    assert world.topics.get("T") == TopicConfig("T", 4, 4)


async def test_a_change_of_a_topic_waits_for_its_deletion(world: World) -> None:
    requests = TopicRequests(
        world.settings,
        SimpleNamespace(topics=world.topics, groups=world.groups, offsets=None),
        stats=BrokerStats(),
        store=None,  # type: ignore[arg-type]
        on_loop=lambda call: call(),
        later=None,  # type: ignore[arg-type]
        bodies=BODIES,
        deleted=no_deletions(),
        removal=None,  # type: ignore[arg-type]
    )
    await world.topics.update(TopicConfig("T", 4, 4))
    await world.topics.withdraw("T")
    ext = {"topic": "T", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
    ext |= {"readQueueNums": 2, "writeQueueNums": 2}
    steps = requests.create_topic(
        Peer(1).connection, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    )
    assert next(steps) is world.topics.under_way("T")
    world.topics.forget("T")
    assert await serve(steps) is not None
    assert world.topics.get("T") == TopicConfig("T", 2, 2)
    assert b'"T"' in world.topics_file.path.read_bytes()


async def test_one_that_waits_for_a_save_and_is_cancelled_takes_no_other_along(
    world: World,
) -> None:
    changes = [world.topics.update(TopicConfig(name)) for name in ("T1", "T2")]
    waiting = [asyncio.ensure_future(asyncio.wait_for(one, 5)) for one in changes]
    also = world.topics.under_way("T1")
    await asyncio.sleep(0)
    waiting[0].cancel()
    await waiting[1]
    assert also is not None
    await also
    assert {"T1", "T2"} <= {topic.name for topic in world.topics.all()}


async def test_all_pending_changes_are_written_at_the_stop(world: World) -> None:
    world.topics.update(TopicConfig("T1"))
    await asyncio.sleep(0)
    changes = [world.topics.update(TopicConfig("T2")), world.topics.delete("T1")]
    await world.topics.flush()
    assert all(change.done() for change in changes)
    table = loads(world.topics_file.path.read_bytes())["topicConfigTable"]
    assert "T2" in table
    assert "T1" not in table


async def test_a_group_is_called_created_when_it_is_on_the_disk(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The log said so, at level info, while the group's heartbeats were refused."""
    caplog.set_level("INFO")
    world.groups_file.is_full = True
    assert world.groups.get("GF") is not None
    await world.groups.flush()
    assert "group created" not in caplog.text
    world.groups_file.is_full = False
    world.groups.retry()
    await world.groups.flush()
    assert "group created name=GF" in caplog.text
