"""The route table against protocol/WIRE.md 5.2 and 5.4, with a clock of its own."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Generator, Iterable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from aerobee.nameserver import routes
from aerobee.nameserver.routes import (
    QueueData,
    Registration,
    RouteLimitReached,
    RouteLimits,
    RouteTable,
)
from aerobee.protocol.bodies.topics import DataVersion
from tests.inline_loop import drive

V1, V2 = DataVersion(1000, 1), DataVersion(2000, 2)
QUEUES = QueueData(4, 4, 6, 0)


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> RouteTable:
    return RouteTable(clock)


def broker(name: str = "b-a", **changes: object) -> Registration:
    values: dict[str, object] = {
        "cluster": "C1",
        "name": name,
        "broker_id": 0,
        "address": f"{name}:10911",
        "ha_address": f"{name}:10912",
        "data_version": V1,
        "topics": {"T1": QUEUES},
        "filter_servers": (),
        "owner": f"connection of {name}",
    }
    values.update(changes)
    return Registration(**values)  # type: ignore[arg-type]


def test_a_registered_topic_has_a_route(table):
    assert table.register(broker()) is None
    queues, groups = table.find("T1")
    assert queues == {"b-a": QUEUES}
    assert [(g.name, g.cluster, g.addresses) for g in groups] == [("b-a", "C1", {0: "b-a:10911"})]
    assert table.clusters == {"C1": {"b-a"}}


def test_an_unchanged_version_changes_no_queues_and_a_new_one_upserts(table):
    table.register(broker())
    table.register(broker(topics={"T1": replace(QUEUES, perm=4), "T2": QUEUES}))
    assert table.find("T1")[0]["b-a"].perm == 6
    assert table.find("T2") is None
    table.register(broker(data_version=V2, topics={"T2": QUEUES}))
    # Topics that a registration does not name stay.
    assert table.find("T1")[0]["b-a"].perm == 6
    assert table.find("T2") is not None


def test_slaves_never_change_queues_and_learn_their_master(table):
    slave = broker(broker_id=1, address="slave:10911", ha_address="slave:10912")
    assert table.register(slave) is None
    assert table.find("T1") is None
    table.register(broker())
    master = table.register(slave)
    assert master is not None
    assert (master.address, master.ha_address) == ("b-a:10911", "b-a:10912")
    table.register(slave._replace(data_version=V2, topics={"T9": QUEUES}))
    assert table.find("T9") is None
    assert table.find("T1")[1][0].addresses == {0: "b-a:10911", 1: "slave:10911"}


def test_a_slave_that_becomes_master_leaves_its_old_id(table):
    table.register(broker(broker_id=1))
    assert table.known_version("b-a", 0, "b-a:10911") is None
    table.register(broker(broker_id=0))
    assert table.groups["b-a"].addresses == {0: "b-a:10911"}
    assert table.find("T1") is not None


def test_a_broker_goes_with_its_connection_and_takes_its_queues(table):
    table.register(broker("b-a"))
    table.register(broker("b-b", topics={"T1": QUEUES, "T2": QUEUES}))
    table.connection_closed("connection of b-b", "reset")
    assert list(table.find("T1")[0]) == ["b-a"]
    assert table.find("T2") is None
    assert table.clusters == {"C1": {"b-a"}}
    table.connection_closed("connection of b-a", "reset")
    assert not table.groups | table.clusters | table.topics | table.live


def test_an_older_connection_of_the_same_broker_may_close(table):
    table.register(broker(owner="first"))
    table.register(broker(owner="second"))
    table.connection_closed("first", "idle")
    assert table.find("T1") is not None
    table.connection_closed("second", "idle")
    assert table.find("T1") is None


def test_a_broker_that_restarts_keeps_its_routes_until_it_has_been_silent(table, clock):
    table.register(broker("b-a"))
    table.leave_for_restart("b-a", 0, "another:10911")
    assert table.live["b-a:10911"].owner is not None, "another address has no say"
    clock.ms += 100_000
    table.leave_for_restart("b-a", 0, "b-a:10911")
    table.connection_closed("connection of b-a", "reset")
    assert table.find("T1") is not None
    clock.ms += 120_000
    assert table.expire() == []
    table.register(broker("b-a", owner="the next one"))
    table.leave_for_restart("b-a", 0, "b-a:10911")
    clock.ms += 120_001
    assert [live.name for live in table.expire()] == ["b-a"]
    assert table.find("T1") is None


def test_silence_of_two_minutes_drops_a_broker_and_a_renewal_keeps_it(table, clock):
    table.register(broker("b-a"))
    table.register(broker("b-b"))
    clock.ms += 120_000
    assert table.expire() == []
    table.renew("b-a:10911")
    clock.ms += 1
    assert [live.name for live in table.expire()] == ["b-b"]
    assert list(table.live) == ["b-a:10911"]


def test_the_master_leaving_keeps_the_name_for_its_slaves(table):
    table.register(broker())
    table.register(broker(broker_id=1, address="slave:10911", owner="slave"))
    table.unregister("b-a", 0, "b-a:10911")
    assert table.find("T1")[1][0].addresses == {1: "slave:10911"}
    table.unregister("b-a", 1, "slave:10911")
    assert table.find("T1") is None


@pytest.mark.parametrize("way", ["unregisters", "its connection ends", "it is silent"])
def test_a_slave_without_its_master_has_the_route_and_learns_of_none(table, clock, way):
    table.register(broker())
    slave = broker(broker_id=1, address="slave:10911", ha_address="slave:10912", owner="slave")
    table.register(slave)
    if way == "unregisters":
        table.unregister("b-a", 0, "b-a:10911")
    elif way == "its connection ends":
        table.connection_closed("connection of b-a", "reset")
    else:
        clock.ms += 60_000
        table.register(slave)
        clock.ms += 60_001
        assert [live.address for live in table.expire()] == ["b-a:10911"]
    queues, (group,) = table.find("T1")
    assert (queues, group.addresses) == ({"b-a": QUEUES}, {1: "slave:10911"})
    assert table.register(slave) is None
    table.register(broker(address="moved:10911", ha_address="moved:10912"))
    master = table.register(slave)
    assert (master.address, master.ha_address) == ("moved:10911", "moved:10912")


def test_a_master_and_its_slaves_are_not_each_others_masters(table):
    table.register(broker())
    assert table.register(broker()) is None, "a master has no master"
    other = broker("b-b", broker_id=1, address="stranger:10911")
    assert table.register(other) is None, "a master of another name is not its master"


def test_two_slaves_of_one_id_are_warned_of(table, caplog):
    table.register(broker(broker_id=1, address="one:10911", owner="one"))
    table.register(broker(broker_id=1, address="two:10911", owner="two"))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "name=b-a id=1 from=one:10911 to=two:10911" in warning
    assert "(brokerId)" in warning


def test_a_late_unregistration_does_not_take_the_successor_away(table):
    table.register(broker(address="old:10911", owner="old"))
    table.register(broker(address="new:10911", owner="new"))
    table.unregister("b-a", 0, "old:10911")
    table.connection_closed("old", "reset")
    assert table.find("T1")[1][0].addresses == {0: "new:10911"}
    table.unregister("b-a", 5, "new:10911")
    table.unregister("b-x", 0, "new:10911")
    assert list(table.live) == ["new:10911"]


def test_one_address_under_two_names_keeps_the_last_and_warns(table, caplog):
    table.register(broker("b-a", address="same:10911"))
    table.register(broker("b-b", address="same:10911"))
    assert list(table.groups) == ["b-b"]
    assert "brokerIP1" in caplog.text


def test_a_name_taken_from_a_live_broker_is_warned_of_each_time(table, caplog):
    table.register(broker(address="one:10911", owner="one"))
    table.register(broker(address="two:10911", owner="two"))
    table.register(broker(address="one:10911", owner="one"))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [re.findall(r"(?:from|to)=(\w+):", text) for text in warnings] == [
        ["one", "two"],
        ["two", "one"],
    ]
    for text in warnings:
        assert "name=b-a id=0" in text
        assert 0 < text.index("brokerRole=SLAVE") < text.index("(brokerName)")


def test_a_broker_that_left_may_come_back_elsewhere_without_a_warning(table, caplog):
    table.register(broker(address="old:10911", owner="old"))
    table.register(broker(broker_id=1, address="slave:10911", owner="slave"))
    table.connection_closed("old", "reset")
    table.register(broker(address="new:10911", owner="new"))
    assert table.find("T1")[1][0].addresses == {0: "new:10911", 1: "slave:10911"}
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_write_permission_is_taken_and_given_until_the_next_version(table):
    table.register(broker(topics={"T1": QUEUES, "T2": QueueData(4, 4, 7, 0)}))
    table.register(broker("b-b"))
    assert table.set_write_perm("b-a", False) == 2
    assert [table.find(t)[0]["b-a"].perm for t in ("T1", "T2")] == [4, 5]
    assert table.find("T1")[0]["b-b"].perm == 6
    table.register(broker())
    assert table.find("T1")[0]["b-a"].perm == 4
    assert table.set_write_perm("b-a", True) == 2
    assert [table.find(t)[0]["b-a"].perm for t in ("T1", "T2")] == [6, 7]
    for _ in range(2):
        table.set_write_perm("b-a", False)
    table.set_write_perm("b-a", True)
    assert table.find("T2")[0]["b-a"].perm == 7
    table.set_write_perm("b-a", False)
    table.register(broker(data_version=V2))
    assert table.find("T1")[0]["b-a"].perm == 6
    assert table.set_write_perm("nobody", False) == 0


def test_a_topic_that_its_broker_has_closed_is_not_opened_by_giving_back_what_was_taken(table):
    closed = {"T1": QueueData(4, 4, 4, 0), "T2": QueueData(4, 4, 2, 0)}
    table.register(broker(topics=closed))
    table.set_write_perm("b-a", True)
    assert [table.find(t)[0]["b-a"].perm for t in ("T1", "T2")] == [4, 2]
    table.set_write_perm("b-a", False)
    assert [table.find(t)[0]["b-a"].perm for t in ("T1", "T2")] == [4, 0]
    table.set_write_perm("b-a", True)
    assert [table.find(t)[0]["b-a"].perm for t in ("T1", "T2")] == [4, 2]


def test_topics_are_deleted_everywhere_or_in_one_cluster(table):
    table.register(broker("b-a"))
    table.register(broker("b-b", cluster="C2"))
    table.delete_topic("T1", "C2")
    assert list(table.find("T1")[0]) == ["b-a"]
    table.delete_topic("T1", "C9")
    assert list(table.find("T1")[0]) == ["b-a"]
    table.delete_topic("T1", None)
    assert table.find("T1") is None
    table.delete_topic("never", None)


def test_lists_by_cluster_and_by_unit_flags(table):
    topics = {f"T{flags}": replace(QUEUES, sys_flag=flags) for flags in range(4)}
    table.register(broker(topics=topics))
    assert drive(table.topics_of_cluster("C1")) == ["T0", "T1", "T2", "T3"]
    assert drive(table.topics_of_cluster("C2")) == []
    assert drive(table.topics_with_flags(1)) == ["T1", "T3"]
    assert drive(table.topics_with_flags(2)) == ["T2", "T3"]
    assert drive(table.topics_with_flags(2, lacking=1)) == ["T2"]


def test_a_missing_route_says_why(table, clock):
    assert table.why_missing("T1") == "no broker is registered here"
    table.register(broker("b-a"))
    table.register(broker("b-b", topics={"T2": QUEUES}))
    assert table.why_missing("T9") == "none of the 2 registered brokers has this topic"
    table.connection_closed("connection of b-b", "idle")
    clock.ms += 12_000
    assert table.why_missing("T2") == (
        "its broker b-b is gone since 12 s: its connection ended (idle)"
    )
    table.register(broker("b-b", topics={"T2": QUEUES}))
    assert "gone" not in table.why_missing("T2")


def test_registrations_above_the_limits_change_nothing(clock):
    table = RouteTable(clock, RouteLimits(brokers=2, queue_entries=3))
    table.register(broker("b-a", topics={"T1": QUEUES, "T2": QUEUES}))
    with pytest.raises(RouteLimitReached, match="3"):
        table.register(broker("b-b", topics={"T1": QUEUES, "T2": QUEUES}))
    assert list(table.groups) == ["b-a"]
    table.register(broker("b-b", topics={"T1": QUEUES}))
    with pytest.raises(RouteLimitReached, match="2 brokers"):
        table.register(broker("b-c", topics={}))
    # Known topics and known brokers are always welcome.
    table.register(broker("b-a", data_version=V2, topics={"T1": QUEUES, "T2": QUEUES}))
    table.connection_closed("connection of b-a", "reset")
    table.register(broker("b-c", topics={"T1": QUEUES, "T2": QUEUES}))


def test_any_history_leaves_the_tables_consistent(clock, seed):
    source = random.Random(seed)
    table = RouteTable(clock, RouteLimits(brokers=8, queue_entries=25))
    for _ in range(3000):
        clock.ms += source.randrange(20_000)
        name = f"b-{source.randrange(4)}"
        address = f"{name}:{source.randrange(3)}"
        number = source.randrange(3)
        match source.randrange(6):
            case 0 | 1 | 2:
                topics = {f"T{source.randrange(9)}": QUEUES for _ in range(4)}
                version = DataVersion(source.randrange(3), 0)
                with contextlib.suppress(RouteLimitReached):
                    table.register(
                        broker(
                            name,
                            cluster=f"C{source.randrange(2)}",
                            broker_id=number,
                            address=address,
                            topics=topics,
                            data_version=version,
                            owner=source.randrange(5),
                        )
                    )
            case 3:
                table.unregister(name, number, address)
            case 4:
                table.connection_closed(source.randrange(5), "x")
            case 5:
                table.expire()
        check_consistent(table)


def check_consistent(table: RouteTable) -> None:
    held = {(g.name, i): a for g in table.groups.values() for i, a in g.addresses.items()}
    live = {(b.name, b.broker_id): b.address for b in table.live.values()}
    assert held == live
    assert all(group.addresses for group in table.groups.values())
    assert {n for names in table.clusters.values() for n in names} == set(table.groups)
    assert all(table.clusters.values())
    names_with_queues = {name for queues in table.topics.values() for name in queues}
    assert names_with_queues <= set(table.groups)
    assert all(table.topics.values())
    assert table._queue_entries == sum(len(queues) for queues in table.topics.values())


MANY = {f"T{number}": QUEUES for number in range(2_000)}


def test_many_topics_come_in_steps(table):
    grown = [len(table.topics)]
    for _ in table.register_in_steps(broker(topics=MANY)):
        grown.append(len(table.topics))
    assert table.topics.keys() == MANY.keys()
    assert max(after - before for before, after in pairwise(grown)) <= 500


@pytest.mark.parametrize("what", ["leaves", "registers anew"])
def test_topics_of_a_broker_that_changes_meanwhile_come_no_further(table, what):
    steps = table.register_in_steps(broker(topics=MANY))
    while len(table.topics) < 1_000:
        next(steps)
    if what == "leaves":
        table.connection_closed("connection of b-a", "it broke")
        expected = {}
    else:
        table.register(broker(data_version=V2, topics={"T1999": replace(QUEUES, perm=4)}))
        expected = {"b-a": replace(QUEUES, perm=4)}
    assert list(steps) == []
    assert table.topics.get("T1999", {}) == expected
    assert len(table.topics) == (0 if what == "leaves" else 1_001)


# --- changes of all topics of a broker, in steps


class ByHand(RouteTable):
    """A table whose changes go on when the test says so."""

    def _begun(self) -> None:
        """Until then nothing is done."""


@pytest.fixture
def stepped(clock: Clock) -> RouteTable:
    """A table whose changes go on when the test says so."""
    table = ByHand(clock)
    table.register(broker(topics=MANY))
    return table


def perms(table: RouteTable, topics: Iterable[str] = MANY) -> set[int | None]:
    """The permissions of broker b-a in these topics, None where it has no queues."""
    found: set[int | None] = set()
    for topic in topics:
        queues = (table.find(topic) or ({}, []))[0]
        found.add(queues["b-a"].perm if "b-a" in queues else None)
    return found


@pytest.mark.parametrize("how", ["closes", "unregisters", "is silent", "loses its address"])
def test_many_topics_go_in_steps_and_their_routes_at_once(stepped, clock, how):
    match how:
        case "closes":
            stepped.connection_closed("connection of b-a", "reset")
        case "unregisters":
            stepped.unregister("b-a", 0, "b-a:10911")
        case "is silent":
            clock.ms += 120_001
            assert len(stepped.expire()) == 1
        case _:
            stepped.register(broker("b-b", address="b-a:10911", topics={"T0": QUEUES}))
    gone = [f"T{number}" for number in range(1, 100)]
    assert len(stepped.topics) > 1_900
    assert perms(stepped, gone) == {None}
    assert all("its broker b-a is gone" in stepped.why_missing(topic) for topic in gone)
    left = [len(stepped.topics)]
    while stepped.change_some():
        left.append(len(stepped.topics))
    assert max(before - after for before, after in pairwise(left)) <= 250
    assert left[-1] == (1 if how == "loses its address" else 0)


@pytest.mark.parametrize("allowed", [False, True])
def test_permissions_of_many_topics_change_in_steps_and_are_read_as_if_at_once(stepped, allowed):
    assert stepped.set_write_perm("b-a", allowed) == 2_000
    perm = 6 if allowed else 4
    assert perms(stepped, ["T0", "T7", "T1999"]) == {perm}
    steps = [
        sum(queues["b-a"].perm == 4 for queues in stepped.topics.values())
        for _ in stepped.finish_changes("b-a")
    ]
    assert len(steps) >= 8
    assert perms(stepped) == {perm}
    assert not stepped.change_some()


def test_a_broker_that_registers_again_keeps_what_it_registered(stepped):
    stepped.unregister("b-a", 0, "b-a:10911")
    stepped.change_some()
    some = {f"T{number}": replace(QUEUES, perm=4) for number in range(900)}
    stepped.register(broker(topics=some))
    stepped.change_some()
    assert stepped.set_write_perm("b-a", True) == 900
    while stepped.change_some():
        pass
    assert stepped.topics.keys() == some.keys()
    assert perms(stepped, some) == {4}
    check_consistent(stepped)


def test_permissions_hold_until_the_topic_is_registered_anew_between_two_steps(stepped):
    stepped.set_write_perm("b-a", False)
    stepped.change_some()
    anew = ["T0", "T1", "T1998", "T1999"]
    stepped.register(broker(data_version=V2, topics=dict.fromkeys(anew, QUEUES)))
    while stepped.change_some():
        pass
    assert perms(stepped, anew) == {6}
    assert perms(stepped, MANY.keys() - set(anew)) == {4}


def test_a_broker_that_goes_while_its_permissions_change_is_gone(stepped):
    stepped.set_write_perm("b-a", False)
    stepped.change_some()
    stepped.connection_closed("connection of b-a", "reset")
    assert stepped.set_write_perm("b-a", True) == 0
    while stepped.change_some():
        pass
    assert not stepped.topics


def test_room_is_there_as_soon_as_a_broker_has_gone(clock):
    limits = RouteLimits(queue_entries=2_000)
    table = ByHand(clock, limits)
    table.register(broker("b-a", topics=MANY))
    with pytest.raises(RouteLimitReached):
        table.register(broker("b-b", topics={"T1": QUEUES}))
    table.connection_closed("connection of b-a", "reset")
    table.register(broker("b-b", topics=MANY))
    assert list(table.find("T7")[0]) == ["b-b"]


def test_a_change_in_steps_is_seen_as_one_at_once(clock, seed, monkeypatch):
    """Two tables with one history; in one of them changes reach one topic after the other."""
    monkeypatch.setattr(routes, "_CHANGED_TOPICS", 1)
    source = random.Random(seed)
    limits = RouteLimits(brokers=8, queue_entries=25)
    at_once, in_steps = RouteTable(clock, limits), ByHand(clock, limits)
    topics = [f"T{number}" for number in range(9)]
    pending = 0
    for _ in range(3_000):
        clock.ms += source.randrange(10_000)
        name = f"b-{source.randrange(4)}"
        made = broker(
            name,
            cluster=f"C{source.randrange(2)}",
            broker_id=source.choice((0, 0, 1)),
            address=f"{name}:{source.randrange(2)}",
            topics=dict.fromkeys(source.sample(topics, 4), QUEUES),
            data_version=DataVersion(source.randrange(3), 0),
            owner=source.randrange(5),
        )
        what, topic = source.randrange(8), source.choice(topics)
        shown = []
        for table in (at_once, in_steps):
            match what:
                case 0 | 1 | 2:
                    try:
                        table.register(made)
                    except RouteLimitReached as error:
                        shown.append(str(error))
                case 3:
                    table.unregister(name, made.broker_id, made.address)
                case 4:
                    table.connection_closed(made.owner, "x")
                case 5:
                    shown.append(table.expire())
                case 6:
                    shown.append(table.set_write_perm(name, bool(made.broker_id)))
                case 7:
                    table.delete_topic(topic, made.cluster)
        assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]
        for _ in range(source.randrange(3)):
            in_steps.change_some()
        pending += bool(in_steps._changes)
        asked = source.choice(topics)
        assert in_steps.find(asked) == at_once.find(asked)
        assert ("gone" in in_steps.why_missing(asked)) == ("gone" in at_once.why_missing(asked))
        assert in_steps._queue_entries == at_once._queue_entries
    assert pending > 300
    while in_steps.change_some():
        pass
    assert in_steps.topics == at_once.topics
    check_consistent(in_steps)


@pytest.mark.parametrize("by", ["flags", "cluster"])
def test_a_list_is_made_in_steps_and_has_each_topic_as_it_is_then(stepped, by):
    def listing() -> Generator[None, None, list[str]]:
        return stepped.topics_of_cluster("C1") if by == "cluster" else stepped.topics_with_flags(0)

    steps = listing()
    assert len(list(steps)) == 4
    steps = listing()
    next(steps)
    stepped.register(broker("b-b", topics={"New": QUEUES, "T1999": QUEUES}))
    stepped.delete_topic("T1998", None)
    stepped.unregister("b-a", 0, "b-a:10911")
    # The topics looked at before the broker left, and the topic of another broker.
    assert drive(steps) == [*(f"T{number}" for number in range(500)), "T1999"]
    assert sorted(drive(listing())) == ["New", "T1999"]
