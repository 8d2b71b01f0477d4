"""`topic explain` finds causes in what name servers and brokers say."""

from __future__ import annotations

from aerobee.cli.cluster.overview.topic_findings import Facts, HereOn, findings, read_on, sent_on
from aerobee.client.administration.overview import NameServerView, Place, RouteView
from aerobee.client.errors import CallTimeout
from aerobee.protocol.bodies.routes import BrokerRoute, ClusterInfo, QueueRoute, TopicRoute

BEE = Place("bee", 0, "10.0.0.1:10911", "C")
INFO = ClusterInfo({"bee": BrokerRoute("bee", "C", {0: BEE.address})}, {"C": ["bee"]})
ONE, TWO = "10.0.0.8:9876", "10.0.0.9:9876"
VIEWS = [NameServerView(ONE, INFO), NameServerView(TWO, INFO)]
HAS = HereOn(BEE, has_it=True, perm=6, broker_perm=6, may_create=True)
LACKS = HAS._replace(has_it=False, perm=None)


def route(
    *, perm: int = 6, read: int = 4, write: int = 4, addresses: dict[int, str] | None = None
) -> TopicRoute:
    addresses = {0: BEE.address} if addresses is None else addresses
    return TopicRoute(
        (QueueRoute("bee", read, write, perm),), (BrokerRoute("bee", "C", addresses),)
    )


def facts(*routes: TopicRoute | None, here: HereOn = HAS, names: tuple[str, ...] = ()) -> Facts:
    views = [RouteView(one, found) for one, found in zip((ONE, TWO), routes, strict=False)]
    return Facts("t", VIEWS, views, [here], frozenset(names))


def words(found: Facts) -> list[tuple[str, str | None]]:
    return [(one.finding, one.where) for one in findings(found)]


def test_a_whole_topic_has_none() -> None:
    found = facts(route(), route())
    assert words(found) == []
    assert (sent_on(found), read_on(found)) == (["bee"], ["bee"])


def test_a_name_server_that_does_not_know_it_is_named() -> None:
    assert words(facts(route(), None)) == [("not_at_this_name_server", TWO)]


def test_a_silent_name_server_is_named_and_says_nothing_of_the_topic() -> None:
    silent = CallTimeout("no answer")
    views = [VIEWS[0], NameServerView(TWO, None, silent)]
    routes = [RouteView(ONE, route()), RouteView(TWO, None, error=silent)]
    assert words(Facts("t", views, routes, [HAS])) == [("name_server_silent", TWO)]


def test_a_topic_that_a_broker_has_and_no_name_server_knows_is_not_registered() -> None:
    assert words(facts(None, None)) == [("not_registered", "bee")]


def test_a_topic_that_nobody_has() -> None:
    with_template = facts(None, here=LACKS, names=("TBW102", "tt"))
    assert words(with_template) == [("another_name", None), ("not_made_yet", "bee")]
    off = LACKS._replace(may_create=False)
    assert words(facts(None, here=off)) == [("auto_creation_off", "bee")]
    assert words(facts(None, here=LACKS._replace(may_create=None))) == [("does_not_exist", None)]
    gone = "No topic route info in name server for the topic: t (its broker b is gone since 9 s: x)"
    of_gone = Facts("t", VIEWS, [RouteView(ONE, None, gone)], [off])
    first = findings(of_gone)[0]
    assert (first.finding, first.cause) == ("broker_gone", "its broker b is gone since 9 s: x")
    deleted = off._replace(was_deleted=True)
    assert words(facts(None, here=deleted))[0] == ("deleted", "bee")


def test_a_broker_that_is_gone_and_one_with_a_slave_alone() -> None:
    gone = facts(route(addresses={}))
    assert words(gone) == [("broker_gone", "bee")]
    assert (sent_on(gone), read_on(gone)) == ([], [])
    slave = facts(route(addresses={1: "10.0.0.2:10911"}))
    assert words(slave) == [("only_on_a_slave", "bee")]
    assert (sent_on(slave), read_on(slave)) == ([], ["bee"])
    silent = HereOn(BEE, error="no answer")
    assert words(facts(route(), here=silent)) == [("broker_silent", "bee")]


def test_rights_are_lacked_by_the_topic_or_by_the_broker() -> None:
    for perm, word in ((4, "topic_without_write"), (2, "topic_without_read")):
        here = HAS._replace(perm=perm)
        assert words(facts(route(perm=perm), here=here)) == [(word, "bee")]
    # The broker's own table has the right.
    assert words(facts(route(perm=4))) == [("write_withheld", "bee")]
    closed = HAS._replace(broker_perm=4)
    assert words(facts(route(perm=4), here=closed)) == [("broker_without_write", "bee")]


def test_queues_that_are_none_or_that_nobody_reads() -> None:
    assert words(facts(route(write=0))) == [("no_queues", "bee")]
    assert sent_on(facts(route(write=0))) == []
    assert words(facts(route(read=0))) == [("no_queues", "bee")]
    assert words(facts(route(read=2))) == [("queues_nobody_reads", "bee")]


def test_topics_of_the_system_and_of_groups() -> None:
    system = HAS._replace(is_system=True)
    assert words(facts(route(), here=system)) == [("system_topic", None)]
    of_group = Facts("%RETRY%g", VIEWS, [RouteView(ONE, route())], [HAS])
    assert words(of_group) == [("topic_of_a_group", None)]
