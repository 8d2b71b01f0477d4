"""Claims about the judge of master and slave: it finds nothing in sound stores, and each thing that
can be wrong with the slave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from tests import campaign
from tests.crash.judges.history import OK, UNKNOWN, History, Seen, Sent
from tests.crash.judges.records import Record, read_log
from tests.crash.replication_links.judge import judge_stores
from tests.crash.replication_links.test_links import NAME
from tests.unit.store.support import fill, small_settings

TOPIC, COUNT = "Orders", 90


def sent_of(record: Record) -> Sent:
    """A send whose producer was told this place."""
    pairs = (pair.partition(b"\1") for pair in record.properties.split(b"\2") if pair)
    properties = {name.decode(): value.decode() for name, _, value in pairs}
    return Sent(
        0, record.log_offset, record.topic, record.queue_id, record.body, properties, OK,
        record.queue_offset, record.log_offset,
    )  # fmt: skip


class Stores:
    """Stopped stores of a master and of a slave that has all, and what clients were told."""

    def __init__(self, folder: Path) -> None:
        self.master, self.slave = folder / "master", folder / "slave"
        store = MessageStore.open(small_settings(self.master))
        fill(store, COUNT)
        store.close()
        (self.master / "config").mkdir(exist_ok=True)
        (self.master / "config" / "topics.json").write_text('{"topicConfigTable": {"Orders": {}}}')
        shutil.copytree(self.master, self.slave)
        self.history = History(
            [sent_of(one) for one in read_log(self.master / "commitlog").records]
        )
        self.promised = list(self.history.sends)

    def lose_last(self) -> Sent:
        """The slave never got the last message."""
        last = self.history.sends[-1]
        size = read_log(self.slave / "commitlog").records[-1].size
        self.change(self.slave, last.log_offset, bytes(size))
        queue = sorted((self.slave / "consumequeue" / TOPIC / "0").iterdir())
        units = b"".join(path.read_bytes() for path in queue)
        first = int(queue[0].name)
        at = last.queue_offset * 20
        units = units[: at - first] + bytes(20) + units[at - first + 20 :]
        for path in queue:
            begin = int(path.name) - first
            path.write_bytes(units[begin : begin + path.stat().st_size])
        return last

    @staticmethod
    def change(store: Path, log_offset: int, data: bytes) -> None:
        """Put other bytes there in a store's log."""
        segments = sorted((store / "commitlog").iterdir(), reverse=True)
        segment = next(path for path in segments if int(path.name) <= log_offset)
        with segment.open("r+b") as file:
            file.seek(log_offset - int(segment.name))
            file.write(data)

    def rules(self) -> list[str]:
        """Rules that were broken."""
        wrong = judge_stores(self.history, self.promised, self.master, self.slave)
        return sorted({one.rule for one in wrong})


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_a_slave_that_has_all_is_as_it_should_be(stores: Stores) -> None:
    assert stores.rules() == []


def test_a_promised_message_that_the_slave_lacks_is_caught(stores: Stores) -> None:
    stores.lose_last()
    caught = stores.rules() == ["I11"]
    campaign.note_control(NAME, "a promised message is not on the slave", int(caught), 1)
    assert caught


def test_a_message_that_nobody_promised_may_be_lacking(stores: Stores) -> None:
    stores.promised.remove(stores.lose_last())
    assert stores.rules() == []


def test_a_log_that_is_no_prefix_is_caught(stores: Stores) -> None:
    one = read_log(stores.slave / "commitlog").records[4]
    # Its time of storing, of which no sum knows.
    stores.change(stores.slave, one.log_offset + 56, (one.store_ms + 1).to_bytes(8, "big"))
    assert stores.rules() == ["I11"]


def test_a_log_that_is_longer_than_the_masters_is_caught(stores: Stores) -> None:
    shutil.rmtree(stores.slave)
    shutil.copytree(stores.master, stores.slave)
    last = stores.history.sends.pop()
    stores.promised.remove(last)
    size = read_log(stores.master / "commitlog").records[-1].size
    stores.change(stores.master, last.log_offset, bytes(size))
    assert "I11" in stores.rules()


def test_what_nobody_has_sent_is_caught(stores: Stores) -> None:
    gone = stores.history.sends.pop()
    stores.promised.remove(gone)
    assert stores.rules() == ["I2"]


def test_two_messages_at_one_offset_are_caught(stores: Stores) -> None:
    """A consumer has read from the slave what the master has otherwise."""
    stores.history.seen.append(Seen(TOPIC, 0, 3, stores.history.sends[4].body))
    assert stores.rules() == ["I3"]


def test_a_send_of_unknown_outcome_may_be_there(stores: Stores) -> None:
    stores.history.sends[7].outcome = UNKNOWN
    stores.promised.remove(stores.history.sends[7])
    assert stores.rules() == []
