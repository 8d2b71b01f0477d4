"""Offsets at the broker and in a local file: forward only, never lost, never somebody else's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from aerobee.client.connections.session import Session
from aerobee.client.consuming.offset_store import BrokerOffsets, LocalOffsets
from aerobee.client.errors import CallerError, OffsetFileInUse
from aerobee.client.options import ClientOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.remoting.connections.connection import Connection

QUEUE, OTHER = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.fixture
async def offsets(broker, name_server):
    session = Session(name_server, ClientOptions(call_timeout_s=5))
    session.start()
    yield BrokerOffsets(session, "g")
    await session.close()


async def test_what_is_stored_at_the_broker_is_read(broker, offsets) -> None:
    assert await offsets.read(QUEUE) is None
    broker.committed["g", "T", 0] = 7
    assert await offsets.read(QUEUE) == 7


async def test_only_what_changed_is_sent(broker, offsets) -> None:
    offsets.update(QUEUE, 3, only_forward=True)
    await offsets.persist([QUEUE, OTHER])
    await offsets.persist([QUEUE, OTHER])
    assert broker.committed == {("g", "T", 0): 3}
    assert len(broker.of(UPDATE)) == 1


async def test_offsets_move_forward_unless_somebody_insists(broker, offsets) -> None:
    offsets.update(QUEUE, 9, only_forward=True)
    offsets.update(QUEUE, 3, only_forward=True)
    await offsets.persist([QUEUE])
    assert broker.committed["g", "T", 0] == 9
    offsets.update(QUEUE, 3, only_forward=False)
    await offsets.persist([QUEUE])
    assert broker.committed["g", "T", 0] == 3


async def test_what_could_not_be_stored_is_sent_again(broker, offsets) -> None:
    broker.answers[UPDATE] = lambda _, command: encode_response(command, 1, "not now")
    offsets.update(QUEUE, 3, only_forward=True)
    await offsets.persist([QUEUE])
    del broker.answers[UPDATE]
    await offsets.persist([QUEUE])
    assert broker.committed["g", "T", 0] == 3


async def test_a_forgotten_queue_is_never_stored_again(broker, offsets) -> None:
    offsets.update(QUEUE, 3, only_forward=True)
    offsets.forget(QUEUE)
    await offsets.persist([QUEUE])
    assert broker.of(UPDATE) == []
    assert offsets.to_carry(QUEUE) is None


async def test_the_first_offset_of_a_topic_goes_alone(broker, offsets, until) -> None:
    """A Java broker that gets several at once may keep only one."""
    waiting: list[tuple[Connection, Command]] = []
    broker.answers[UPDATE] = lambda *request: waiting.append(request)
    queues = [MessageQueue("T", "a", number) for number in range(4)]
    for queue in queues:
        offsets.update(queue, 3, only_forward=True)
    persisting = [asyncio.create_task(offsets.persist([queue])) for queue in queues]
    for number, code in enumerate((1, 0)):
        await until(lambda number=number: len(waiting) > number)
        await offsets.read(MessageQueue("T", "a", 9))  # had more been sent, they were here now
        assert len(waiting) == number + 1
        assert [offsets.to_carry(queue) for queue in queues] == [None] * 4
        connection, command = waiting[-1]
        connection.write(encode_response(command, code, "not now"))
    await until(lambda: len(waiting) == 4)
    assert [offsets.to_carry(queue) for queue in queues] == [3] * 4
    for connection, command in waiting[2:]:
        connection.write(encode_response(command, 0))
    await asyncio.gather(*persisting)


async def test_where_a_group_has_offsets_none_goes_alone(broker, offsets, until) -> None:
    broker.committed["g", "T", 0] = 7
    assert await offsets.read(QUEUE) == 7
    waiting: list[tuple[Connection, Command]] = []
    broker.answers[UPDATE] = lambda *request: waiting.append(request)
    for queue in (QUEUE, OTHER):
        offsets.update(queue, 8, only_forward=True)
    persisting = asyncio.create_task(offsets.persist([QUEUE, OTHER]))
    await until(lambda: len(waiting) == 2)
    for connection, command in waiting:
        connection.write(encode_response(command, 0))
    await persisting


def opened(directory: Path, instance: str = "DEFAULT") -> LocalOffsets:
    store = LocalOffsets(directory, instance, "g")
    store.open()
    return store


async def test_a_file_keeps_offsets_over_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert await store.read(QUEUE) is None
    store.update(QUEUE, 3, only_forward=True)
    store.update(OTHER, 4, only_forward=True)
    store.forget(OTHER)  # still this consumer's, whoever consumes the queue now
    await store.persist([])
    store.close()
    again = opened(tmp_path)
    assert (await again.read(QUEUE), await again.read(OTHER)) == (3, 4)
    again.close()


async def test_the_file_is_in_rocketmqs_form(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.update(QUEUE, 3, only_forward=True)
    await store.persist([])
    store.close()
    text = (tmp_path / "DEFAULT" / "g.json").read_text()
    assert text == '{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"T"}:3}}'


async def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.persist([QUEUE])
    store.close()
    assert not (tmp_path / "DEFAULT" / "g.json").exists()


async def test_writes_at_the_same_time_leave_the_last_state(tmp_path: Path) -> None:
    store = opened(tmp_path)

    async def move(offset: int) -> None:
        store.update(QUEUE, offset, only_forward=True)
        await store.persist([])

    await asyncio.gather(*(move(offset) for offset in range(1, 21)))
    store.close()
    again = opened(tmp_path)
    assert await again.read(QUEUE) == 20
    again.close()


async def test_a_failed_write_is_tried_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.update(QUEUE, 3, only_forward=True)
    obstacle = tmp_path / "DEFAULT" / "g.tmp"
    obstacle.mkdir()
    await store.persist([])
    obstacle.rmdir()
    await store.persist([])
    store.close()
    assert (tmp_path / "DEFAULT" / "g.json").exists()


def test_a_second_consumer_on_the_same_file_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(OffsetFileInUse, match="instance_name"):
        opened(tmp_path)
    opened(tmp_path, "other").close()
    first.close()
    first.close()  # twice does no harm
    opened(tmp_path).close()


def test_a_child_by_fork_does_not_keep_the_file_of_its_parent_locked(tmp_path: Path) -> None:
    first = opened(tmp_path)
    waiting, letting_go = os.pipe()
    begun, begins = os.pipe()
    child = os.fork()
    if not child:
        os.close(letting_go)
        os.write(begins, b"x")
        os.read(waiting, 1)
        os._exit(0)
    os.read(begun, 1)
    first.close()
    opened(tmp_path).close()
    os.close(letting_go)
    assert os.waitpid(child, 0)[1] == 0
    for one in (waiting, begun, begins):
        os.close(one)


@pytest.mark.parametrize("text", ["", "{", '{"offsetTable":{"x":1}}', '{"offsetTable":[1]}'])
def test_a_damaged_file_is_an_error_not_a_fresh_start(tmp_path: Path, text: str) -> None:
    directory = tmp_path / "DEFAULT"
    directory.mkdir()
    (directory / "g.json").write_text(text)
    with pytest.raises(CallerError, match=r"g\.json"):
        opened(tmp_path)
    (directory / "g.json").unlink()
    opened(tmp_path).close()  # and the lock was given up


@pytest.mark.parametrize("name", ["a\0b", "..", "a/b", ""])
def test_an_instance_name_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(CallerError):
        LocalOffsets(tmp_path, name, "g")


@pytest.mark.parametrize("length", [1, 246, 247, 250, 255])
@pytest.mark.parametrize("instance", ["DEFAULT", "i" * 255, "\u00e4" * 200, "n" * 4000])
async def test_a_name_of_any_length_has_a_file_of_its_own(
    tmp_path: Path, instance: str, length: int
) -> None:
    for number, last in enumerate("AB"):
        store = LocalOffsets(tmp_path, instance, "G" * (length - 1) + last)
        store.open()
        store.update(QUEUE, number, only_forward=True)
        await store.persist([])
        store.close()
    for number, last in enumerate("AB"):
        store = LocalOffsets(tmp_path, instance, "G" * (length - 1) + last)
        store.open()
        assert await store.read(QUEUE) == number
        store.close()


async def test_a_name_that_fits_is_the_file_s_as_it_always_was(tmp_path: Path) -> None:
    group = "G" * 246
    store = LocalOffsets(tmp_path, "i" * 255, group)
    store.open()
    store.update(QUEUE, 1, only_forward=True)
    await store.persist([])
    store.close()
    assert (tmp_path / ("i" * 255) / f"{group}.json").exists()
