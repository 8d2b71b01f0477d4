"""Features of Java's client that need more than sending and consuming, with our broker and with the
real one: the same program, the same outcome. Client 4.9.8 with both, and 5.5.0 with ours.

The brokers, and a process with clients for each of them, live as long as this file's tests; tests
keep apart by topic and group.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests import drawing
from tests.interop.brokers import Broker, JavaBroker, OurBroker, StoreShape
from tests.interop.features import Client, Features, Side
from tests.interop.kit import require
from tests.interop.processes import Line, wait_until
from tests.interop.wire import SUCCESS, Stored, Wire

SHAPE = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "2000",  # and an answer comes before the next one
    "transactionCheckMax": "3",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "messageDelayLevel": "1s 2s 1s 1s",  # retries begin at the third
}
NAME_SERVER = {"orderMessageEnable": "true"}
SIDES = {"our": ("our", "4.9.8"), "java": ("java", "4.9.8"), "our-5.5.0": ("our", "5.5.0")}

PRODUCERS, PUT_KV = 204, 100
UNIT_TOPICS, UNIT_SUBSCRIBED, UNIT_SUBSCRIBED_OTHERS = 311, 312, 313
PUT_ASIDE, TRACES = "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Side]]:
    """The sides that this run takes, started at once."""
    require("java-broker")
    root = tmp_path_factory.mktemp("features")
    options = {"shape": StoreShape(extra=SHAPE), "name_server": NAME_SERVER}
    brokers: dict[str, Broker] = {
        "our": OurBroker(root / "our", **options),  # type: ignore[arg-type]
        "java": JavaBroker(root / "java", **options),  # type: ignore[arg-type]
    }
    processes: list[Features] = []
    try:
        for broker in brokers.values():
            broker.launch()
        made = {}
        for name, (kind, version) in SIDES.items():
            if not drawing.takes(f"java-{version}"):
                continue
            require(f"features-{version}")
            java, victim = (Features(version, root / f"{name}-{n}.log") for n in ("java", "victim"))
            processes += [java, victim]
            made[name] = Side(brokers[kind], java, victim)
        for part in (*brokers.values(), *processes):
            part.wait_ready()
        yield made
        for process in processes:
            process.end()
        for broker in brokers.values():
            broker.stop()
    finally:
        for process in processes:
            process.end()
        for broker in brokers.values():
            broker.kill()


@pytest.fixture(scope="module", autouse=True)
def transactions(sides: dict[str, Side]) -> dict[str, Begun]:
    """The transactions begun on each side."""
    with ThreadPoolExecutor() as threads:
        return dict(zip(sides, threads.map(begin_transactions, sides.values()), strict=True))


@pytest.fixture
def side(request: pytest.FixtureRequest, sides: dict[str, Side]) -> Iterator[Side]:
    one = sides[request.param]
    yield one
    one.close()


everywhere = pytest.mark.parametrize("side", SIDES, indirect=True)


def bodies(messages: list[Line]) -> list[str]:
    return [one["body"] for one in messages]


# --- SQL92 ----------------------------------------------------------------------------------------

SQL_MESSAGES = {
    "m0": "a=1,b=x",
    "m1": "a=5,b=y",
    "m2": "a=10.5,b=x,sure=true",
    "m3": "b=z",
    "m4": "a=abc,b=y",
    "m5": "",
    "m6": "a=20,b=x,sure=false",
}
#: Expression: its messages. A property 10.5 is no number to those that name whole ones.
SQL = {
    "a > 3": "16",
    "a > 3.0": "126",
    "a BETWEEN 5 AND 20": "16",
    "a NOT BETWEEN 5.0 AND 10.5": "06",
    "a = 5.0": "1",
    "b = 'x'": "026",
    "b <> 'x'": "134",
    "b IN ('x', 'z')": "0236",
    "b NOT IN ('x', 'z')": "14",
    "a IS NULL": "35",
    "a IS NOT NULL AND b <> 'x'": "14",
    "a > 3 OR b = 'z'": "136",
    "NOT (a > 3)": "0",
    "sure = TRUE": "2",
    "TAGS IN ('m1', 'm5')": "15",
    "TAGS IS NOT NULL AND TAGS IN ('m1', 'm2') AND (a IS NOT NULL AND a BETWEEN 0 AND 7)": "1",
}
WRONG_SQL = ("a >", "b > 'x'", "(a > 3", "a BETWEEN 'x' AND 3")
PARSE_FAILED = 23


@everywhere
def test_sql_chooses_by_properties(side: Side) -> None:
    topic = side.topic("sql", 1)
    early, opening = side.begin("consumer", "sql-early", topic=topic, orderly="yes", sql="a > 3.0")
    sender = side.make("producer", "sql-sender")
    early.ended(opening)
    for body, properties in {**SQL_MESSAGES, "end": "a=7,b=x"}.items():
        sender.do("send", topic=topic, body=body, tag=body, properties=properties)
    options = {"topic": topic, "sql": "a BETWEEN 5.0 AND 10.5", "reject_first": "yes"}
    refusing, opening = side.begin("consumer", "sql-refusing", **options)
    poller, polling = side.begin("poller", "sql-poller", topic=topic, sql="b IN ('x', 'z')")
    puller = side.make("puller", "sql-puller")
    wait_until(
        lambda: "error" not in puller.ask("pull", topic=topic, sql="a > 0"),
        60,
        "the client knows that its broker is not too old for expressions",
    )
    asked = {sql: puller.begin("pull", topic=topic, sql=sql, max=7) for sql in SQL}
    found = {
        sql: "".join(one[1] for one in bodies(puller.ended(number)["found"]) if one != "end")
        for sql, number in asked.items()
    }
    assert found == SQL
    if not side.is_java:  # which gives them everything
        for sql in WRONG_SQL:
            refused = puller.ask("pull", topic=topic, sql=sql)
            assert (refused["error"], refused["code"]) == ("MQBrokerException", PARSE_FAILED)
    assert bodies(early.messages(4)) == ["m1", "m2", "m6", "end"]
    poller.ended(polling)
    assert bodies(poller.do("poll", count=5)["found"]) == ["m0", "m2", "m3", "m6", "end"]
    refusing.ended(opening)
    again = refusing.messages(3)
    assert {one["body"]: one["reconsume"] for one in again} == {"m1": 1, "m2": 1, "end": 1}


@everywhere
def test_sql_that_cannot_be_read_is_refused(side: Side) -> None:
    topic = side.topic("wrong-sql", 1)
    numbers = []
    for n, sql in enumerate(WRONG_SQL):
        client, number = side.begin("consumer", f"wrong-sql-{n}", topic=topic, sql=sql)
        side.clients.remove(client)
        numbers.append(number)
    for sql, number in zip(WRONG_SQL, numbers, strict=True):
        refused = side.java.ended(number)
        assert (refused["error"], refused["code"]) == ("MQClientException", PARSE_FAILED), sql
        assert refused["text"]


# --- request and reply ----------------------------------------------------------------------------

TIMED_OUT = 10006  # a code of the client's


@everywhere
def test_requests_get_their_replies(side: Side) -> None:
    topic = side.topic("requests", 1)
    consumer, opening = side.begin("consumer", "request-reader", topic=topic)
    asker, replier = side.make("producer", "asker"), side.make("producer", "replier")
    consumer.ended(opening)
    for n, options in enumerate([{}, {"callback": "yes"}]):
        body = f"question-{n}"
        asked = asker.begin("request", topic=topic, body=body, keys=f"key-{n}", **options)
        question = consumer.messages(n + 1)[n]
        assert question["properties"]["REPLY_TO_CLIENT"].endswith(f"@{asker.name}")
        assert question["keys"] == f"key-{n}"
        told = replier.do("reply", consumer=consumer.name, to=body, body=f"answer-{n}")
        assert told["topic"] == "DefaultCluster_REPLY_TOPIC"
        reply = asker.ended(asked)["reply"]
        assert reply["body"] == f"answer-{n}"
        same = reply["properties"]["CORRELATION_ID"] == question["properties"]["CORRELATION_ID"]
        assert same, (question, reply)
        assert reply["properties"]["MSG_TYPE"] == "reply"
        assert int(reply["properties"]["PUSH_REPLY_TIME"]) >= question["born"]


@everywhere
def test_requests_without_a_reply_end_in_time(side: Side) -> None:
    """And a reply that comes later, or for a client that has gone, harms nobody."""
    topic = side.topic("unanswered", 1)
    consumer, opening = side.begin("consumer", "unanswered-reader", topic=topic)
    asker, replier = side.make("producer", "hasty"), side.make("producer", "slow")
    consumer.ended(opening)
    numbers = [
        asker.begin("request", topic=topic, body=body, timeout=1500, callback=callback)
        for body, callback in {"plain": "no", "called back": "yes"}.items()
    ]
    for number in numbers:
        ended = asker.ended(number)
        assert (ended["error"], ended["code"]) == ("RequestTimeoutException", TIMED_OUT)
    consumer.messages(2)
    late = replier.do("reply", consumer=consumer.name, to="plain", body="late")
    assert late["status"] == "SEND_OK"
    asker.do("close")
    side.clients.remove(asker)
    gone = replier.ask("reply", consumer=consumer.name, to="plain", body="too late")
    assert (gone["error"], gone["code"]) == ("MQClientException", 1)


# --- traces ---------------------------------------------------------------------------------------


TRACED = Counter({"Pub": 2, "EndTransaction": 1, "SubBefore": 2, "SubAfter": 2})
#: A consumer of 5.x leaves out messages without MSG_REGION, which brokers of 4.9 give to none.
TRACED_BY_5 = Counter({"Pub": 2, "EndTransaction": 1})


@everywhere
def test_traces_are_found_by_key(side: Side) -> None:
    """Traces tell what a producer, a transactional producer and a consumer did with a message, and
    when."""
    topic = side.topic("traced", 1)
    sender = side.make("producer", "traced-sender", trace="yes")
    deciding = side.make("producer", "traced-decider", trace="yes", transactions="yes")
    consumer = side.make("consumer", "traced-reader", trace="yes", topic=topic)
    key = f"trace-{topic}"
    begun_ms = int(time.time() * 1000)
    plain = sender.do("send", topic=topic, body="plain", keys=key, tag="T")
    options = {"keys": key, "properties": TRANSACTIONS["committed"], "transaction": "yes"}
    decided = deciding.do("send", topic=topic, body="decided", **options)
    consumer.messages(2)
    kinds = TRACED if side.java.version.startswith("4.") else TRACED_BY_5
    traces: list[list[str]] = []

    def complete() -> bool:
        found = sender.ask("find", topic=TRACES, key=key).get("found", [])
        lines = [line for one in found for line in one["body"].split("\x02") if line]
        traces[:] = [line.split("\x01") for line in lines]
        return len(traces) >= kinds.total()

    wait_until(complete, 60, "all traces are stored")
    assert Counter(fields[0] for fields in traces) == kinds
    sent = {(fields[0], fields[5]): fields for fields in traces if fields[0] in TRACED_BY_5}
    groups = {plain["id"]: "traced-sender", decided["id"]: "traced-decider"}
    for (_, message_id), fields in sent.items():
        assert int(fields[1]) >= begun_ms
        assert fields[2:5] == ["DefaultRegion", side.named(groups[message_id]), topic]
        assert fields[7:9] == [key, side.broker.address]
    first = sent["Pub", plain["id"]]
    assert (first[6], first[9], first[12:]) == ("T", "5", [plain["offsetId"], "true"])
    assert sent["EndTransaction", decided["id"]][-2:] == ["COMMIT_MESSAGE", "false"]
    before = {fields[5]: fields for fields in traces if fields[0] == "SubBefore"}
    after = {fields[2]: fields for fields in traces if fields[0] == "SubAfter"}
    assert before.keys() == after.keys() == (groups.keys() if kinds == TRACED else set())
    for message_id, fields in before.items():
        assert fields[3] == side.named("traced-reader")
        assert fields[4] == after[message_id][1]
        assert (fields[6], fields[7], after[message_id][4]) == ("0", key, "true")


# --- ways to consume ------------------------------------------------------------------------------


@everywhere
def test_broadcasting_reaches_every_member(side: Side) -> None:
    """And each goes on where it stopped."""
    topic = side.topic("broadcast", 2)
    sender = side.make("producer", "broadcast-sender")
    options = {"group": side.named("broadcast"), "topic": topic, "model": "BROADCASTING"}

    def send(turn: str) -> list[str]:
        for n in range(4):
            sender.do("send", topic=topic, body=f"{turn}-{n}", queue=n % 2)
        return [f"{turn}-{n}" for n in range(4)]

    first = side.make("consumer", "broadcast-first", **options)
    second = side.make("consumer", "broadcast-second", **options)
    sent = send("a")
    assert sorted(bodies(first.messages(4))) == sorted(bodies(second.messages(4))) == sent
    first.do("close")
    side.clients.remove(first)
    sent += send("b")
    assert sorted(bodies(second.messages(8))) == sent
    first = side.make("consumer", "broadcast-first", **options)
    assert sorted(bodies(first.messages(8))) == sent


@everywhere
def test_pull_consumers_read_queues(side: Side) -> None:
    topic = side.topic("pulled", 2)
    sender = side.make("producer", "pull-sender")
    puller = side.make("puller", "puller")
    assert puller.do("queues", topic=topic)["count"] == 2
    nothing = puller.do("pull", topic=topic)
    assert (nothing["status"], nothing["next"]) == ("NO_NEW_MSG", 0)
    held = puller.begin("pull", topic=topic, hold="yes")
    begun_ms = int(time.time() * 1000)
    sender.do("send", topic=topic, body="p0", queue=0, tag="A")
    assert bodies(puller.ended(held)["found"]) == ["p0"]
    for n in range(1, 4):
        sender.do("send", topic=topic, body=f"p{n}", queue=0, tag="AB"[n % 2])

    def pulled(**options: object) -> tuple[str, int, list[str]]:
        answer = puller.do("pull", topic=topic, **options)
        return answer["status"], answer["next"], bodies(answer["found"])

    assert pulled(offset=1, max=2) == ("FOUND", 3, ["p1", "p2"])
    assert pulled(tag="B") == ("FOUND", 4, ["p1", "p3"])
    assert pulled(tag="none") == ("NO_MATCHED_MSG", 4, [])
    assert pulled(offset=4) == ("NO_NEW_MSG", 4, [])
    assert pulled(offset=99) == ("OFFSET_ILLEGAL", 4, [])
    ends = puller.do("offsets", topic=topic, time=begun_ms - 60_000)
    assert (ends["min"], ends["max"], ends["at"]) == (0, 4, 0)
    puller.do("commit", topic=topic, offset=3)
    with side.broker.wire() as wire:
        committed = lambda: puller.do("committed", topic=topic)["offset"] == 3  # noqa: E731
        wait_until(committed, 10, "the offset is stored")
        puller.do("back", topic=topic, offset=2, level=1)
        retry = f"%RETRY%{side.named('puller')}"
        wait_until(lambda: wire.max_offset(retry, 0) == 1, 30, "it comes again")
        (again,) = wire.read_queue(retry, 0)
    assert (again.body, again.properties["RETRY_TOPIC"]) == ("p2", topic)


@everywhere
def test_lite_pull_consumers_seek_and_commit(side: Side) -> None:
    topic = side.topic("polled", 2)
    sender = side.make("producer", "poll-sender")
    for n in range(4):
        sender.do("send", topic=topic, body=f"p{n}", queue=n // 3, tag="AB"[n % 2])
    tagged, opening = side.begin("poller", "poll-tagged", topic=topic, tag="B")
    poller = side.make("poller", "poller", topic=topic, queue=0)
    assert bodies(poller.do("poll", count=3)["found"]) == ["p0", "p1", "p2"]
    assert poller.do("commit")["offset"] == 3
    poller.do("seek", offset=1)
    assert bodies(poller.do("poll", count=2)["found"]) == ["p1", "p2"]
    tagged.ended(opening)
    assert sorted(bodies(tagged.do("poll", count=2)["found"])) == ["p1", "p3"]


@pytest.mark.parametrize("side", ["our", "our-5.5.0"], indirect=True)
def test_what_is_subscribed_to_while_pulls_are_held_is_not_passed_over(side: Side) -> None:
    """The reference passes it over: its clients choose by their wishes when they pulled, and go on
    behind all the others."""
    topic = side.topic("restated", 2)
    sender = side.make("producer", "restating-sender")
    consumer = side.make("consumer", "restating", topic=topic, tag="B")
    poller = side.make("poller", "restating-poller", topic=topic, tag="B")
    for n in range(2):
        sender.do("send", topic=topic, body=f"b{n}", queue=n, tag="B")
    assert sorted(bodies(consumer.messages(2))) == ["b0", "b1"]
    assert sorted(bodies(poller.do("poll", count=2)["found"])) == ["b0", "b1"]
    for one in (consumer, poller):
        one.do("subscribe", topic=topic, tag="C")
    for n in range(6):
        sender.do("send", topic=topic, body=f"c{n}", queue=n % 2, tag="C")
    assert sorted(bodies(consumer.messages(8))[2:]) == [f"c{n}" for n in range(6)]
    assert sorted(bodies(poller.do("poll", count=6)["found"])) == [f"c{n}" for n in range(6)]


@everywhere
def test_orderly_consumers_wait_for_a_refused_message(side: Side) -> None:
    """The next one of its queue comes behind it; delayed ones come when it is time."""
    topic = side.topic("orderly", 2)
    sender = side.make("producer", "orderly-sender")
    for n in range(8):
        sender.do("send", topic=topic, body=f"{n % 2}-{n}", queue=n % 2)
    for level in (2, 1):
        sender.do("send", topic=topic, body=f"0-late-{level}", queue=0, level=level)
    options = {"topic": topic, "orderly": "yes", "reject_first": "yes"}
    consumer = side.make("consumer", "orderly", **options)
    given = consumer.messages(10)
    queues = [[one for one in bodies(given) if one.startswith(f"{queue}-")] for queue in (0, 1)]
    assert queues[0] == ["0-0", "0-2", "0-4", "0-6", "0-late-1", "0-late-2"]
    assert queues[1] == ["1-1", "1-3", "1-5", "1-7"]
    assert {one["reconsume"] for one in given} == {1}
    for one in given:
        if "late" in one["body"]:
            assert one["stored"] - one["born"] >= int(one["body"][-1]) * 1000


# --- names and topics -----------------------------------------------------------------------------


@everywhere
def test_names_of_a_namespace_are_its_own(side: Side) -> None:
    """Clients say the short names, and the broker has the long ones; retries included."""
    name, group = side.named("orders"), side.named("shop-reader")
    topic = side.broker.create_topic(f"shop%{name}", 1)
    sender = side.make("producer", "shop-sender", namespace="shop")
    options = {"topic": name, "namespace": "shop", "reject_first": "yes"}
    consumer = side.make("consumer", "shop-reader", **options)
    sent = sender.do("send", topic=name, body="order")
    (given,) = consumer.messages(1)
    assert (given["topic"], given["id"], given["reconsume"]) == (name, sent["id"], 1)
    properties = given["properties"]
    assert properties["INSTANCE_ID"] == "shop"
    assert (properties["RETRY_TOPIC"], properties["REAL_TOPIC"]) == (topic, f"%RETRY%shop%{group}")
    assert properties["ORIGIN_MESSAGE_ID"] == sent["offsetId"]


@everywhere
def test_units_have_topics_of_their_own(side: Side) -> None:
    """The first message of a producer of a unit makes one; the retries of its consumer, too."""
    topic, group = side.named("unit-topic"), side.named("unit-reader")
    sender = side.make("producer", "unit-sender", unit="yes")
    sent = sender.do("send", topic=topic, body="of a unit")
    assert sent["topic"] == topic
    consumer = side.make("consumer", "unit-reader", unit="yes", topic=topic, reject_first="yes")
    (given,) = consumer.messages(1)
    assert (given["body"], given["reconsume"]) == ("of a unit", 1)
    with Wire(side.broker.name_server) as wire:

        def listed(code: int) -> set[str]:
            names = set(json.loads(wire.done(code).body)["topicList"])
            return names & {topic, f"%RETRY%{group}"}

        wait_until(lambda: listed(UNIT_TOPICS) == {topic}, 30, "the topic is listed")
        wait_until(lambda: listed(UNIT_SUBSCRIBED) == {f"%RETRY%{group}"}, 30, "so are retries")
        assert listed(UNIT_SUBSCRIBED_OTHERS) == {f"%RETRY%{group}"}


@everywhere
def test_an_ordered_topic_has_the_queues_of_its_configuration(side: Side) -> None:
    topic = side.topic("ordered", 4)
    sender = side.make("producer", "ordered-sender")
    assert sender.do("queues", topic=topic)["count"] == 4
    with Wire(side.broker.name_server) as wire:
        entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic, "value": "interop:2"}
        wire.done(PUT_KV, entry)
    assert sender.do("queues", topic=topic)["count"] == 2


# --- times, of 5.x --------------------------------------------------------------------------------

MESSAGE_ILLEGAL, ILLEGAL_OPERATION = 13, 604


@pytest.mark.parametrize("side", ["our-5.5.0"], indirect=True)
def test_messages_have_times_of_their_own(side: Side) -> None:
    """None comes early; a recalled message does not come. (Java's broker has no such times.)"""
    topic = side.topic("timed", 1)
    sender = side.make("producer", "timed-sender")
    consumer = side.make("consumer", "timed-reader", topic=topic)
    now_ms = int(time.time() * 1000)
    times = {
        "ms": "setDelayTimeMs=1300",
        "s": "setDelayTimeSec=1",
        "at": f"setDeliverTimeMs={now_ms + 1600}",
        "recalled": f"setDeliverTimeMs={now_ms + 8000}",
        "last": f"setDeliverTimeMs={now_ms + 8001}",
        "past": f"setDeliverTimeMs={now_ms - 1}",
    }
    sent = {body: sender.do("send", topic=topic, body=body, time=at) for body, at in times.items()}
    handles = {body: one["handle"] for body, one in sent.items()}
    assert [body for body, handle in handles.items() if not handle] == ["past"]
    recalled = sender.do("recall", topic=topic, handle=handles["recalled"])
    assert recalled["id"] == sent["recalled"]["id"]
    far = f"setDeliverTimeMs={now_ms + 50 * 86_400_000}"
    assert sender.ask("send", topic=topic, body="too far", time=far)["code"] == MESSAGE_ILLEGAL
    given = consumer.messages(5)
    assert {one["body"] for one in given} == times.keys() - {"recalled"}
    for one in given:
        assert one["stored"] >= int(one["properties"]["TIMER_DELIVER_MS"])
    late = sender.ask("recall", topic=topic, handle=handles["last"])
    assert (late["error"], late["code"]) == ("MQBrokerException", ILLEGAL_OPERATION)


# --- transactions ---------------------------------------------------------------------------------

#: By body: the producer's decision at once, and at checks. A check that came before a decision, as
#: on a busy machine, would have Java's broker deliver a message twice: none is made for an hour.
AT_ONCE = "CHECK_IMMUNITY_TIME_IN_SECONDS=3600,check=none"
TRANSACTIONS = {
    "committed": f"local=commit,{AT_ONCE}",
    "rolled back": f"local=rollback,{AT_ONCE}",
    "committed late": "local=unknown,check=commit",
    "rolled back late": "local=unknown,check=rollback",
    "committed later": "local=unknown,check=unknown+commit",
    "undecided": "local=unknown,check=unknown",
}
CHECKS = {
    "orphan": [("commit", "1")],
    "committed late": [("commit", "1")],
    "rolled back late": [("rollback", "1")],
    "committed later": [("unknown", "1"), ("commit", "2")],
    "undecided": [("unknown", "1"), ("unknown", "2"), ("unknown", "3")],
}
assert SHAPE["transactionCheckMax"] == str(len(CHECKS["undecided"]))


class Begun(NamedTuple):
    """Transactions of one side, begun before its other tests and looked at behind them: checks take
    some seconds."""

    topic: str
    group: str
    consumer: Client
    deciding: Client
    sent: dict[str, Line]


def begin_transactions(side: Side) -> Begun:
    topic = side.topic("transactions", 1)
    group = side.named("deciders")
    consumer = side.make("consumer", "transaction-reader", topic=topic)
    deciding = side.make("producer", "deciders", transactions="yes")

    def begin(body: str) -> Line:
        options = {"tag": "A", "keys": f"key {body}", "properties": TRANSACTIONS[body]}
        return deciding.do("send", topic=topic, body=body, transaction="yes", **options)

    sent = {"committed": begin("committed")}
    wait_until_asked(side, group)
    die_undecided(side, topic, group)
    sent |= {body: begin(body) for body in TRANSACTIONS if body != "committed"}
    side.clients.clear()  # they end with the process
    return Begun(topic, group, consumer, deciding, sent)


def wait_until_asked(side: Side, group: str) -> None:
    """A producer says that it is there a second after its first message."""
    with side.broker.wire() as wire:
        ext = {"producerGroup": group}
        wait_until(lambda: wire.call(PRODUCERS, ext).code == SUCCESS, 60, f"{group} is known")


def die_undecided(side: Side, topic: str, group: str) -> None:
    """Another producer of the group is killed between its half message and its decision."""
    doomed = Client(side.victim, "doomed")
    doomed.do("producer", namesrv=side.broker.name_server, group=group, transactions="yes")
    properties = "local=hang,check=commit"
    doomed.begin("send", topic=topic, body="orphan", properties=properties, transaction="yes")
    side.victim.wait_events("doomed", "local", 1)
    side.victim.end()


@everywhere
def test_transactions_are_decided_at_once_or_when_asked(
    side: Side, transactions: dict[str, Begun], request: pytest.FixtureRequest
) -> None:
    """Their producer decides them, or another of its group where it has died; each committed
    message is delivered once, no other is."""
    begun = transactions[request.node.callspec.params["side"]]
    states = [begun.sent[body]["state"] for body in TRANSACTIONS]
    assert states == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", *["UNKNOW"] * 4]
    given = {one["body"]: one for one in begun.consumer.messages(4)}
    with side.broker.wire() as wire:
        wait_until(lambda: put_aside(wire, begun.topic), 60, "what nobody decides is put aside")
        aside = [one.body for one in put_aside(wire, begun.topic)]
        assert [body for body in aside if not _once_more(side, body)] == ["undecided"]
        assert wire.max_offset(begun.topic, 0) == len(given) == 4
    assert given.keys() == {"committed", "orphan", "committed late", "committed later"}
    check_questions(side, begun)
    for body, times in {"committed": None, "committed late": "1", "committed later": "2"}.items():
        assert given[body]["id"] == begun.sent[body]["id"]
        properties = given[body]["properties"]
        assert properties["KEYS"] == f"key {body}"
        assert (properties["PGROUP"], properties["TRAN_MSG"]) == (begun.group, "true")
        assert properties.get("TRANSACTION_CHECK_TIMES") == times


def _once_more(side: Side, body: str) -> bool:
    """Java's broker (4.9.7; two whole runs in four on one day) sometimes goes on asking about the
    first transaction of all, which was committed at once and delivered, and then puts it aside."""
    return body == "committed" and side.is_java


def put_aside(wire: Wire, topic: str) -> list[Stored]:
    if wire.max_offset(PUT_ASIDE, 0) == 0:
        return []
    found = wire.read_queue(PUT_ASIDE, 0)
    return [one for one in found if one.properties["REAL_TOPIC"] == topic]


def check_questions(side: Side, begun: Begun) -> None:
    """Each was asked about as often as it had to be, and delivered after that."""
    questions: dict[str, list[tuple[str, str]]] = {}
    for line in side.java.lines:
        if line.get("client") == begun.consumer.name and line["event"] == "message":
            body = line["message"]["body"]
            assert body == "committed" or questions[body] == CHECKS[body]
        elif line.get("client") == begun.deciding.name and line["event"] == "check":
            message = line["message"]
            body = message["body"]
            asked = (line["decision"], message["properties"]["TRANSACTION_CHECK_TIMES"])
            questions.setdefault(body, []).append(asked)
            assert body == "orphan" or line["transaction"] == begun.sent[body]["id"]
            assert message["topic"] == message["properties"]["REAL_TOPIC"]
    questions = {body: said for body, said in questions.items() if not _once_more(side, body)}
    assert questions == CHECKS
