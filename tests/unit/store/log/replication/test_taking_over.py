"""A slave's store that becomes a master's numbers its messages after those that it has copied."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from tests.forms import compiled_form
from tests.unit.store.log.replication.pair import Pair
from tests.unit.store.support import bodies, message


@pytest.fixture(params=["plain", "compiled"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    compiled = compiled_form().store if request.param == "compiled" else None
    two = Pair(tmp_path, compiled)
    for number in range(5):
        two.master.log.put(message(b"%d" % number, "Orders", 0))
    two.connect()
    two.drain()
    two.disconnect()
    yield two
    two.close()


def put_more(store: MessageStore) -> None:
    for number, body in enumerate((b"5", b"6"), 5):
        assert store.log.put(message(body, "Orders", 0)).queue_offset == number
    assert store.log.put(message(b"new", "Other", 3)).queue_offset == 0
    store.dispatch()
    assert bodies(store) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    assert bodies(store, "Other", 3) == [b"new"]


def test_numbers_go_on_while_the_store_is_open(pair: Pair) -> None:
    pair.slave.number_on()
    put_more(pair.slave)


def test_numbers_go_on_after_a_restart(pair: Pair) -> None:
    assert pair.slave.close()
    pair.open_slave()
    put_more(pair.slave)
