"""One store directory, opened in turn by the Java broker and by ours."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import campaign
from tests.interop.brokers import Broker, StoreShape
from tests.interop.kit import require
from tests.interop.peers import PEERS, found, query
from tests.interop.scenarios import QUEUES, stored_when_complete
from tests.interop.wire import Stored, Wire

COUNT = campaign.size("crossing")
TOPIC = "crossing"
GROUP = "crossing-readers"
WRITERS = ("java-4.9.8", "go")
FAR_FUTURE_MS = 9_999_999_999_999
# Small segments, so that the log rolls, and every index file fills up and is followed by another.
SHAPE = StoreShape(
    segment_bytes=1 << (20 if campaign.is_full() else 18),
    queue_segment_bytes=2 * COUNT,
    index_slots=COUNT // 2,
    index_entries=2 * COUNT,
)


def write(broker: Broker, log: Path, prefix: str) -> None:
    """Every kind of send by two clients."""
    for name in WRITERS:
        require(name)
        modes = "sync,async,oneway,batch"
        run = PEERS[name].produce(
            broker, log / prefix, TOPIC, COUNT, prefix=prefix, modes=modes, keys="yes"
        )
        assert run.wait(60)[-1]["failed"] == 0


def consume(broker: Broker, log: Path, name: str, group: str, count: int) -> set[str]:
    options = {"count": count, "mode": "orderly"}
    lines = PEERS[name].consume(broker, log / group, TOPIC, group, **options).wait(60)
    return {line["body"] for line in lines if "body" in line}


def everything(broker: Broker, written: int) -> list[Stored]:
    with broker.wire() as wire:
        stored_when_complete(wire, TOPIC, written)
        stored = wire.read_topic(TOPIC, QUEUES)
    assert len(stored) == written
    return stored


def bodies(*prefixes: str) -> set[str]:
    return {f"{prefix}-{name}-{n}" for prefix in prefixes for name in WRITERS for n in range(COUNT)}


def check_queries(broker: Broker, log: Path, stored: list[Stored]) -> None:
    """Look messages up by key, id and time, over the wire and by the reference client."""
    with broker.wire() as wire:
        for one in stored[:: COUNT // 20]:
            assert one in wire.by_key(TOPIC, one.body, one.store_ms - 1_000, one.store_ms)
            assert wire.by_log_offset(one.log_offset) == one
            if broker.kind == "our":  # Java picks the segment by file time, which lags behind a map
                own = [each for each in stored if each.queue == one.queue]
                at = wire.search_offset(TOPIC, one.queue, one.store_ms)
                assert own[at].store_ms == one.store_ms
            if "UNIQ_KEY" in one.properties:
                key = one.properties["UNIQ_KEY"]
                assert one in wire.by_key(TOPIC, key, 0, FAR_FUTURE_MS, unique=True)
    java = query(broker, log)
    for one in stored[:: COUNT // 2]:
        around = found(java, f"key {TOPIC} {one.body} {one.store_ms - 1_000} {one.store_ms}")
        seen = [(each["queue"], each["offset"], each["body"]) for each in around]
        assert seen == [(one.queue, one.queue_offset, one.body)]
        unique = one.properties.get("UNIQ_KEY")
        if unique:
            assert found(java, f"unique {TOPIC} {unique}")[0]["body"] == one.body
    java.close()


def committed(store: Path) -> dict[str, int]:
    table = json.loads(quote_keys((store / "config" / "consumerOffset.json").read_text()))
    offsets: dict[str, int] = table["offsetTable"][f"{TOPIC}@{GROUP}"]
    return offsets


def quote_keys(text: str) -> str:
    """The dialect of these files writes numbers as bare keys."""
    words = text.replace("\t", "").replace("\n", "")
    for mark in "{,":
        for queue in range(QUEUES):
            words = words.replace(f"{mark}{queue}:", f'{mark}"{queue}":')
    return words


@pytest.mark.parametrize("kinds", [("java", "our", "java"), ("our", "java", "our")], ids="-".join)
def test_a_store_wanders_between_the_brokers(
    kinds: tuple[str, str, str], new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first, second, third = (
        new_broker(kind, f"{turn}-{kind}", shape=SHAPE, store=store)
        for turn, kind in enumerate(kinds)
    )

    first.start()
    first.create_topic(TOPIC, QUEUES)
    write(first, tmp_path, "first")
    one_turn = everything(first, 2 * COUNT)
    assert consume(first, tmp_path, "java-4.9.8", GROUP, 2 * COUNT) == bodies("first")
    first.stop()
    before = committed(store)
    assert sum(before.values()) == 2 * COUNT

    second.start()
    assert everything(second, 2 * COUNT) == one_turn
    check_queries(second, tmp_path / "second", one_turn)
    assert consume(second, tmp_path, "go", "second-all", 2 * COUNT) == bodies("first")
    write(second, tmp_path, "second")
    # The group goes on where the other broker left it: it is handed the new messages only.
    assert consume(second, tmp_path, "java-4.9.8", GROUP, 2 * COUNT) == bodies("second")
    two_turns = everything(second, 4 * COUNT)
    second.stop()
    after = committed(store)
    assert sum(after.values()) == 4 * COUNT

    third.start()
    assert everything(third, 4 * COUNT) == two_turns
    check_queries(third, tmp_path / "third", two_turns)
    all_bodies = bodies("first", "second")
    assert consume(third, tmp_path, "java-4.9.8", "third-all", 4 * COUNT) == all_bodies
    with third.wire() as wire:
        end = wire.max_offset(TOPIC, 0)
        assert wire.send(TOPIC, 0, b"third").ext["queueOffset"] == str(end)
    third.stop()


@pytest.mark.parametrize("kinds", [("java", "our"), ("our", "java")], ids="-".join)
def test_a_killed_brokers_store_opens_in_the_other(
    kinds: tuple[str, str], new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Recovery after kill -9 reads the other's checkpoint, queues and index."""
    store = tmp_path / "store"
    killed, heir = (
        new_broker(kind, f"{turn}-{kind}", shape=SHAPE, store=store)
        for turn, kind in enumerate(kinds)
    )
    killed.start()
    killed.create_topic(TOPIC, QUEUES)
    write(killed, tmp_path, "first")
    before = everything(killed, 2 * COUNT)
    killed.kill()

    heir.start()
    assert everything(heir, 2 * COUNT) == before
    check_queries(heir, tmp_path / "heir", before)
    write(heir, tmp_path, "second")
    everything(heir, 4 * COUNT)
    assert consume(heir, tmp_path, "go", "heir-all", 4 * COUNT) == bodies("first", "second")
    heir.stop()


@pytest.mark.parametrize("kinds", [("java", "our"), ("our", "java")], ids="-".join)
def test_records_of_ipv6_hosts_cross(
    kinds: tuple[str, str], new_broker: Callable[..., Broker], tmp_path: Path
) -> None:
    """Born and store host, each of either family, side by side in one log."""
    store = tmp_path / "store"
    six = StoreShape(extra={"brokerIP1": "::1", "bindAddress": "::"})
    four = StoreShape(extra={"bindAddress": "::"})
    stored: list[Stored] = []
    for turn, (kind, shape) in enumerate([(kinds[0], six), (kinds[1], six), (kinds[0], four)]):
        broker = new_broker(kind, f"{turn}-{kind}", shape=shape, store=store).start()
        if turn == 0:
            broker.create_topic(TOPIC, QUEUES)
        assert everything(broker, len(stored)) == stored
        for host in ("127.0.0.1", "[::1]"):
            with Wire(f"{host}:{broker.port}") as wire:
                for queue in range(QUEUES):
                    wire.send(TOPIC, queue, f"{turn}-{host}-{queue}".encode(), KEYS=f"{turn}")
        stored = everything(broker, len(stored) + 2 * QUEUES)
        new = [one for one in stored if one.body.startswith(f"{turn}-")]
        told = shape.extra.get("brokerIP1", "127.0.0.1")
        assert {one.born_host for one in new} == {"127.0.0.1", "::1"}
        assert {one.store_host for one in new} == {told}
        with broker.wire() as wire:
            for one in stored:
                assert wire.by_log_offset(one.log_offset) == one
            assert wire.by_key(TOPIC, f"{turn}", 0, FAR_FUTURE_MS) != []
        broker.stop()
