"""A large batch that is encoded before its append gives the bytes of a batch encoded at once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.message.record_layout import pack_host
from aerobee.store.dispatch.reput import ROUND_MOST
from aerobee.store.errors import MessageIllegal
from aerobee.store.log import commit_log
from aerobee.store.log.compiled import Compiled
from aerobee.store.message_store import MessageStore
from tests.forms import compiled_form
from tests.unit.store.support import ManualClock, bodies, message, small_settings


def opened(path: Path, compiled: Compiled | None = None, **changes: object) -> MessageStore:
    settings = small_settings(
        path, commit_log_segment_bytes=1 << 20, max_message_bytes=1 << 19, **changes
    )
    return MessageStore.open(settings, clock=ManualClock(), compiled=compiled)


@pytest.fixture(params=["plain", "compiled"])
def compiled(request: pytest.FixtureRequest) -> Compiled | None:
    """The form that places the records."""
    return compiled_form().store if request.param == "compiled" else None


def put_prepared(store: MessageStore, messages: list[StoreMessage]) -> object:
    batch = store.log.prepare_batch()
    for one in messages:
        batch.add(one)
    return store.log.put_prepared(batch)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_the_bytes_are_those_of_a_batch_encoded_at_once(
    tmp_path: Path, sealed: bool, host: str, compiled: Compiled | None
) -> None:
    born = pack_host(host, 5000)
    # Many of one size, a few, and each another one.
    sizes = [10] * 300 + [11] * 15 + [12] * 16 + [10 + n % 3 for n in range(200)] + [10] * 20
    batch = [
        message(b"%03d" % n + bytes(size), unique=f"U{n:03}", tags=f"T{n % 3}", born_host=born)
        for n, size in enumerate(sizes)
    ]
    logs, results = [], []
    for name in ("once", "prepared"):
        store = opened(tmp_path / name, compiled, append_property_crc=sealed)
        store.log.put(message(b"before"))
        put = store.log.put_batch if name == "once" else partial(put_prepared, store)
        results.append(put(batch))
        store.log.put(message(b"behind"))
        store.dispatch()
        assert bodies(store) == [b"before", *(one.body for one in batch), b"behind"]
        assert store.close()
        logs.append((tmp_path / name / "commitlog" / f"{0:020d}").read_bytes())
    assert logs[0] == logs[1]
    assert msgspec.structs.replace(results[0], log_offsets=()) == results[1]


def test_a_batch_that_does_not_fit_the_segment_begins_the_next(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for _ in range(2):
        store.log.put(message(bytes(400_000)))
    result = put_prepared(store, [message(bytes(1000)) for _ in range(400)])
    assert result.log_offset == 1 << 20
    store.dispatch()
    assert len(bodies(store)) == 402
    assert store.close()


def test_a_batch_beyond_a_limit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    batch = store.log.prepare_batch()
    batch.add(message(bytes(1 << 18)))
    with pytest.raises(MessageIllegal, match="maxMessageSize"):
        batch.add(message(bytes(1 << 18) + b"x"))
    with pytest.raises(MessageIllegal, match="one queue"):
        batch.add(message(queue_id=1))
    assert store.written == 0
    assert store.close()


def test_a_refusal_is_counted_whichever_way_a_batch_comes(tmp_path: Path) -> None:
    store = opened(tmp_path)
    two_queues = [message(), message(queue_id=1)]
    for put, count in ((store.log.put_batch, 1), (partial(put_prepared, store), 2)):
        with pytest.raises(MessageIllegal, match="one queue"):
            put(two_queues)
        assert store.stats.put_failures == {"MessageIllegal": count}
    assert store.close()


def test_dispatch_goes_in_rounds_and_loses_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put_prepared(store, [message(b"%d" % n) for n in range(3 * ROUND_MOST)])
    rounds = []
    more = True
    while more:
        arrivals, more = store.dispatch_round()
        rounds.append(len(arrivals))
    assert rounds == [ROUND_MOST] * 3
    assert bodies(store) == [b"%d" % n for n in range(3 * ROUND_MOST)]
    assert store.close()


def test_of_a_batch_larger_than_what_may_be_pending_nothing_is_kept_for_dispatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "PENDING_MOST", 100)
    store = opened(tmp_path)
    store.log.put(message(b"before"))
    put_prepared(store, [message(b"%d" % n, keys=f"K{n}") for n in range(101)])
    assert not store.log.feeding
    assert len(store.log.pending) == 0
    store.log.put(message(b"behind"))
    store.dispatch()
    assert bodies(store) == [b"before", *(b"%d" % n for n in range(101)), b"behind"]
    assert store.log.feeding
    assert store.close()


def test_catching_up_from_the_log_goes_in_rounds_too(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.log.stop_feeding()
    count = 3 * ROUND_MOST
    put_prepared(store, [message(b"%d" % n) for n in range(count)])
    rounds = []
    more = True
    while more:
        arrivals, more = store.dispatch_round()
        rounds.append(len(arrivals))
    assert sum(rounds) == count
    assert max(rounds) < count
    assert bodies(store) == [b"%d" % n for n in range(count)]
    assert store.close()
