"""SQL92 filters: the same verdict as RocketMQ's own filter module, for generated expressions.

One JVM holds `rocketmq-filter` as the Java broker has it (java/filter/SqlFilterPeer.java). It and
our engine get the same expressions and properties: whether the expression is valid, and whether
each message gives true, false, null or a failure. Then a broker that holds the messages gets them
too: consumers' pulls that bring their expression get those for which it is true there, all of them
and no others.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote_plus, unquote_plus, urlencode

import pytest

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.sql_filter import SqlFilter, compile_sql
from aerobee.protocol.filters.sql_values import Incomparable
from tests import campaign
from tests.interop.brokers import Broker
from tests.interop.clients.sql_expressions import (
    CORNERS,
    DOCUMENTED,
    NUMBERS,
    SYMBOLS,
    VALUES,
    Generator,
)
from tests.interop.kit import CACHE, HERE, HOME, JAVA_BROKER, require
from tests.interop.peers import JAVA_FLAGS
from tests.interop.processes import Dialogue
from tests.interop.wire import PULL_MESSAGE, SUCCESS, Wire

EXPRESSIONS, MESSAGES = 250, 12
# Messages of the broker.
STORED = 1_000
# Pulls that are on their way at a time.
WINDOW = 50
SYSTEM_BUSY, PARSE_FAILED, RETRY_IMMEDIATELY = 2, 23, 20


class Peer:
    """RocketMQ's filter module."""

    def __init__(self, folder: Path) -> None:
        jars = f"{CACHE}/java/broker-{JAVA_BROKER}/*"
        source = str(HERE / "java" / "filter" / "SqlFilterPeer.java")
        argv = ["java", *JAVA_FLAGS, "-cp", jars, source]
        self.child = Dialogue(argv, folder / "sql-filter.log", {"HOME": str(HOME)}, start_s=120)

    def ask(self, expression: str, messages: list[dict[str, str]]) -> dict[str, str]:
        fields = [quote_plus(expression), *map(urlencode, messages)]
        return self._answer("\t".join(fields))

    def keep(self, messages: list[dict[str, str]]) -> None:
        """`ask_kept` is for these from now on."""
        answer = self._answer("\t".join(["keep:", *map(urlencode, messages)]))
        assert int(answer["kept"]) == len(messages)

    def ask_kept(self, expression: str) -> dict[str, str]:
        return self._answer(f"{quote_plus(expression)}\tkept:")

    def _answer(self, question: str) -> dict[str, str]:
        answer = self.child.ask(question, 60)
        return {name: unquote_plus(text) for name, text in answer.items()}


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    require("java-broker")
    one = Peer(tmp_path_factory.mktemp("sql-filter"))
    yield one
    one.child.close()


def letter(compiled: SqlFilter, message: dict[str, str]) -> str:
    try:
        return {True: "T", False: "F", None: "N"}[compiled.evaluate(message)]
    except Incomparable:
        return "E"


def ours(expression: str, messages: list[dict[str, str]]) -> dict[str, str]:
    try:
        compiled = compile_sql(expression)
    except BadRequest as refusal:
        return {"refused": refusal.remark}
    for message in messages:
        assert compiled.matches(message) == (letter(compiled, message) == "T")
    return {"results": "".join([letter(compiled, message) for message in messages])}


# Where we differ and mean to: the reasons are in protocol/filters/sql_filter.py.
REST, ZERO = "refused here for what is unread there", "a floating-point zero, refused there alone"


def verdict(mine: dict[str, str], theirs: dict[str, str], expression: str) -> str:
    """The verdict of both, or how they differ by intention; fails for any other difference."""
    if theirs.get("unread"):
        assert "refused" in mine, (expression, mine, theirs)
        return REST
    if "is less than 4.9E-324" in theirs.get("refused", ""):
        return ZERO
    assert ("refused" in mine) == ("refused" in theirs), (expression, mine, theirs)
    assert mine.get("results") == theirs.get("results"), (expression, mine, theirs)
    return "refused" if "refused" in mine else "evaluated"


@pytest.mark.parametrize("turn", range(campaign.size("sql filter")))
def test_generated_filters_say_what_rocketmqs_say(peer: Peer, turn: int) -> None:
    generator = Generator(campaign.rng(f"sql filter {turn}"))
    verdicts: Counter[str] = Counter()
    letters: Counter[str] = Counter()
    for _ in range(EXPRESSIONS):
        expression = generator.expression()
        messages = [generator.properties() for _ in range(MESSAGES)]
        theirs = peer.ask(expression, messages)
        print(repr(expression), messages, theirs)
        verdicts[verdict(ours(expression, messages), theirs, expression)] += 1
        letters.update(theirs.get("results", ""))
    # The generator makes enough of everything to mean something.
    assert verdicts["evaluated"] > EXPRESSIONS / 5, verdicts
    assert verdicts["refused"] > EXPRESSIONS / 10, verdicts
    assert min(letters[one] for one in "TFNE") > 50, letters


def test_each_text_is_the_number_it_is_there(peer: Peer) -> None:
    """Every property value against every number, both ways round, and against each other."""
    messages = [{"a": value} for value in VALUES]
    for number in NUMBERS:
        for symbol in SYMBOLS:
            for expression in (f"a {symbol} {number}", f"-{number} {symbol} a"):
                theirs = peer.ask(expression, messages)
                assert verdict(ours(expression, messages), theirs, expression) == "evaluated"
    pairs = [{"a": one, "b": other} for one in VALUES for other in VALUES]
    for symbol in SYMBOLS:
        expression = f"a {symbol} b"
        theirs = peer.ask(expression, pairs)
        assert verdict(ours(expression, pairs), theirs, expression) == "evaluated"


@pytest.mark.parametrize("expression", CORNERS)
def test_corners_are_those_there(peer: Peer, expression: str) -> None:
    messages = [{}, *[{"a": value} for value in VALUES], *[{"b": value} for value in VALUES]]
    messages += [{"a": value, "b": "5"} for value in VALUES]
    theirs = peer.ask(expression, messages)
    verdict(ours(expression, messages), theirs, expression)


# --- through a broker -----------------------------------------------------------------------------


class Consumer:
    """Pulls of one queue, each with an expression of its own; many are sent before one is read.

    One that waited too long for its turn behind the others is sent again, as a consumer would.
    """

    def __init__(self, wire: Wire, topic: str, count: int) -> None:
        self._wire = wire
        self._topic = topic
        self._count = count

    def send(self, expressions: Sequence[str]) -> list[int]:
        """Ask for the whole queue by each expression; by which numbers they are asked for."""
        return [self._pull(expression, 0) for expression in expressions]

    def read(self, asked: list[int], expressions: Sequence[str]) -> list[dict[str, str]]:
        """Returns the form of `Peer.ask_kept` for each, T for a message that came and F for a
        message that did not."""
        came = [set[int]() for _ in expressions]
        refused = [""] * len(expressions)
        # The place of each pull's expression, and its offset.
        waiting = {number: (place, 0) for place, number in enumerate(asked)}
        while waiting:
            number, answer = self._wire.next_answer()
            place, offset = waiting.pop(number)
            if answer.code == SYSTEM_BUSY:
                waiting[self._pull(expressions[place], offset)] = place, offset
                continue
            if answer.code == PARSE_FAILED:
                refused[place] = answer.remark or "?"
                continue
            assert answer.code in (SUCCESS, RETRY_IMMEDIATELY), (expressions[place], answer)
            if answer.code == SUCCESS:
                came[place].update(queue_offsets(answer.body))
            if (following := int(answer.ext["nextBeginOffset"])) < self._count:
                waiting[self._pull(expressions[place], following)] = place, following
        return [
            {"refused": why} if why else {"results": letters(found, self._count)}
            for why, found in zip(refused, came, strict=True)
        ]

    def _pull(self, expression: str, offset: int) -> int:
        return self._wire.ask(
            PULL_MESSAGE,
            {
                "consumerGroup": "sql", "topic": self._topic, "queueId": 0, "queueOffset": offset,
                "maxMsgNums": self._count, "maxMsgBytes": 1 << 20, "sysFlag": 4,
                "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": expression,
                "subVersion": 0, "expressionType": "SQL92",
            },
        )  # fmt: skip


def queue_offsets(body: bytes) -> Iterator[int]:
    """The queue offsets of the records of an answer; there may be millions, so nothing else is
    looked at."""
    place = 0
    while place < len(body):
        (size,) = struct.unpack_from(">i", body, place)
        yield struct.unpack_from(">q", body, place + 20)[0]
        place += size


def letters(true: set[int], count: int) -> str:
    return "".join(["T" if number in true else "F" for number in range(count)])


def stored_messages(broker: Broker, peer: Peer, topic: str) -> None:
    """Generated ones in one queue, known to the peer as well."""
    generator = Generator(campaign.rng(f"sql broker messages {topic}"))
    messages = [generator.properties() for _ in range(STORED)]
    peer.keep(messages)
    broker.create_topic(topic, 1)
    with broker.wire() as wire:
        for number, one in enumerate(messages):
            assert wire.send(topic, 0, b"%d" % number, **one).code == 0


def compare_through(broker: Broker, peer: Peer, topic: str, asked: Sequence[str]) -> Counter[str]:
    """The counts of verdicts on the expressions; fails where the two differ without intention."""
    verdicts: Counter[str] = Counter()
    with broker.wire() as wire:
        consumer = Consumer(wire, topic, STORED)
        for place in range(0, len(asked), WINDOW):
            some = asked[place : place + WINDOW]
            numbers = consumer.send(some)
            theirs = [peer.ask_kept(expression) for expression in some]
            for mine, their, one in zip(consumer.read(numbers, some), theirs, some, strict=True):
                if "results" in their:
                    verdicts["true"] += their["results"].count("T")
                    # A consumer is given what is true, and cannot tell the others apart.
                    their["results"] = their["results"].replace("N", "F").replace("E", "F")
                verdicts[verdict(mine, their, one)] += 1
    return verdicts


@pytest.fixture
def our_broker(broker: Broker) -> Broker:
    if broker.kind != "our":
        pytest.skip("the Java broker has what it is compared with here inside")
    return broker


def test_consumers_get_what_documented_and_cornered_expressions_mean(
    peer: Peer, our_broker: Broker
) -> None:
    stored_messages(our_broker, peer, "sql-documented")
    verdicts = compare_through(our_broker, peer, "sql-documented", DOCUMENTED)
    assert verdicts["evaluated"] == len(DOCUMENTED)
    # Some messages for nearly each of them.
    assert verdicts["true"] > len(DOCUMENTED) * STORED / 100
    compare_through(our_broker, peer, "sql-documented", CORNERS)


def test_consumers_get_what_generated_expressions_mean(peer: Peer, our_broker: Broker) -> None:
    stored_messages(our_broker, peer, "sql-generated")
    generator = Generator(campaign.rng("sql broker"))
    expressions = [generator.expression() for _ in range(campaign.size("sql broker"))]
    verdicts = compare_through(our_broker, peer, "sql-generated", expressions)
    campaign.note(
        "sql broker",
        len(expressions),
        differences=0,
        judged=verdicts["evaluated"] * STORED,
        delivered=verdicts["true"],
    )
    assert verdicts["evaluated"] > len(expressions) / 5, verdicts
    assert verdicts["refused"] > len(expressions) / 10, verdicts
    assert verdicts["true"] > len(expressions) * STORED / 50, verdicts
