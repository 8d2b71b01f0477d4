"""Accounts: the same clients against our broker and the real Java one, with the same file.

Both allow the same, but for the differences in `STRICTER`, with the reason.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee.protocol.frames.signature import signed
from tests import drawing
from tests.interop.administration.mqadmin import AdminPeer, fields_of
from tests.interop.brokers import Broker, GuardedBroker, GuardedJavaBroker
from tests.interop.features import Client, Features
from tests.interop.kit import require
from tests.interop.peers import PEERS
from tests.interop.processes import Line
from tests.interop.wire import SUCCESS, Wire

SECRET = "interop-hidden"
ADMIN = "administrator"
ACCOUNTS = f"""\
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: orders-writer
  secretKey: {SECRET}
  topicPerms:
  - orders=PUB
- accessKey: orders-reader
  secretKey: {SECRET}
  topicPerms:
  - orders=SUB
  groupPerms:
  - readers=SUB
- accessKey: orders-both
  secretKey: {SECRET}
  topicPerms:
  - orders=PUB|SUB
  groupPerms:
  - readers=SUB
- accessKey: everyday
  secretKey: {SECRET}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: only-others
  secretKey: {SECRET}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms:
  - orders=DENY
  groupPerms:
  - readers=DENY
"""
USERS = ("orders-writer", "orders-reader", "orders-both", "only-others")
#: The askers: an access key with a right or a wrong secret, or nobody.
ASKERS = (
    *((user, SECRET) for user in USERS),
    ("orders-both", "another-secret"),
    ("nobody-here", SECRET),
)
TOPIC, GROUP = "orders", "readers"
SIDES = ("our 4.9.8", "our 5.5.0", "java 4.9.8")


@dataclass(frozen=True, slots=True)
class Side:
    """A broker and a process with clients."""

    broker: Broker
    java: Features

    def client(self, kind: str, key: str, secret: str, number: int) -> Client:
        client = Client(self.java, f"{kind}-{number}")
        options: dict[str, object] = {"namesrv": self.broker.name_server, "group": GROUP}
        if key:
            options |= {"access_key": key, "secret_key": secret}
        client.do(kind, **options)
        return client


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Side]]:
    names = [name for name in SIDES if drawing.takes(f"java-{name.partition(' ')[2]}")]
    for part in ("java-broker", *(f"java-{name.partition(' ')[2]}" for name in names)):
        require(part)
    folder = tmp_path_factory.mktemp("access")
    account = (ADMIN, SECRET)
    ours = GuardedBroker(folder / "our", ACCOUNTS, account)
    java = GuardedJavaBroker(folder / "java", ACCOUNTS, account)
    brokers: tuple[Broker, ...] = (ours, java)
    processes: list[Features] = []
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda broker: broker.start(), brokers))
        for broker in brokers:
            broker.create_topic(TOPIC, 2)
        found = {}
        for name in names:
            kind, _, version = name.partition(" ")
            process = Features(version, folder / f"{name.replace(' ', '-')}.log")
            processes.append(process)
            found[name] = Side(ours if kind == "our" else java, process)
        for process in processes:
            process.wait_ready()
        yield found
    finally:
        for process in processes:
            process.end()
        for broker in brokers:
            broker.kill()


def outcome(answer: Line) -> str:
    """`allowed`, or why not, as far as both brokers say the same."""
    if "error" not in answer:
        return "allowed"
    text = str(answer["text"])
    for reason in (
        "No accessKey is configured", "No acl config for", "Check signature failed",
        "No default permission for",
    ):  # fmt: skip
        if reason in text:
            return reason
    return text


def ask_all(side: Side) -> dict[str, str]:
    """Each asker sends, pulls and asks for offsets."""
    found = {}
    numbers = itertools.count()
    for key, secret in (*ASKERS, ("", "")):
        who = key if secret in (SECRET, "") else f"{key} with another secret"
        producer = side.client("producer", key, secret, next(numbers))
        puller = side.client("puller", key, secret, next(numbers))
        asked: dict[str, Callable[[], Line]] = {
            "send": lambda p=producer: p.ask("send", topic=TOPIC, body="x", keys="k"),  # type: ignore[misc]
            "pull": lambda p=puller: p.ask("pull", topic=TOPIC, queue=0),  # type: ignore[misc]
            "offsets": lambda p=puller: p.ask("offsets", topic=TOPIC, queue=0),  # type: ignore[misc]
        }
        for what, ask in asked.items():
            found[f"{who or 'nobody'}: {what}"] = outcome(ask())
        for client in (producer, puller):
            client.do("close")
    return found


#: Allowed by 4.9.7 to anybody with an account, and not here (access/needs.py).
STRICTER = {"only-others: offsets": "the ends of a topic are told to who may send to it or read it"}


def test_clients_are_allowed_what_a_java_broker_allows_them(sides: dict[str, Side]) -> None:
    with ThreadPoolExecutor() as threads:
        found = dict(zip(sides, threads.map(ask_all, sides.values()), strict=True))
    java, ours = found["java 4.9.8"], found["our 4.9.8"]
    assert found.get("our 5.5.0", ours) == ours
    differs = {key: (ours[key], java[key]) for key in java if ours[key] != java[key]}
    assert differs == dict.fromkeys(STRICTER, ("No default permission for", "allowed"))
    allowed = sorted(key for key, what in ours.items() if what == "allowed")
    assert allowed == [
        "orders-both: offsets",
        "orders-both: pull",
        "orders-both: send",
        "orders-reader: offsets",
        "orders-reader: pull",
        "orders-writer: offsets",
        "orders-writer: send",
    ]  # fmt: skip


def test_a_consumer_with_rights_gets_what_a_producer_with_rights_sends(
    sides: dict[str, Side],
) -> None:
    for name, side in sides.items():
        options = {"access_key": "orders-both", "secret_key": SECRET}
        topic = {"topic": TOPIC}
        consumer = Client(side.java, f"consumer-{name}")
        consumer.do("consumer", namesrv=side.broker.name_server, group=GROUP, **topic, **options)
        producer = side.client("producer", "orders-both", SECRET, 100)
        producer.do("send", **topic, body=f"hello {name}")
        side.java.wait_lines(
            lambda lines, name=name: any(  # type: ignore[misc]
                line.get("message", {}).get("body") == f"hello {name}" for line in lines
            ),
            90,
        )
        for client in (consumer, producer):
            client.do("close")


def test_a_field_that_old_clients_do_not_sign(sides: dict[str, Side]) -> None:
    """4.9.8's server leaves `_UNIQUE_KEY_QUERY` out whoever signs it, so that newer clients cannot
    ask by a message's id; ours goes by the client's version, as 5.x servers do."""
    ext = {
        "topic": TOPIC, "key": "none", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1",
        "_UNIQUE_KEY_QUERY": "true",
    }  # fmt: skip

    def is_refused(wire: Wire) -> bool:
        fields = signed(ext, b"", "orders-reader", SECRET)
        answer = wire.call(12, fields)
        assert answer.code != SUCCESS
        return "Check signature failed" in (answer.remark or "")

    for name in ("our 4.9.8", "java 4.9.8"):
        with Wire(sides[name].broker.address) as wire:
            assert is_refused(wire) == name.startswith("java")


#: Commands as an administrator types them; the last commands are refused.
ADMIN_COMMANDS = (
    "clusterAclConfigVersion -c DefaultCluster",
    "updateAclConfig -c DefaultCluster -a newcomer -s newcomer-hidden -i DENY -u SUB -t made=PUB",
    "updateAclConfig -b {broker} -a newcomer -s newcomer-hidden -t made=PUB|SUB -g makers=SUB",
    "clusterAclConfigVersion -b {broker}",
    "updateGlobalWhiteAddr -b {broker} -g 192.0.2.7,192.0.2.8",
    "deleteAclConfig -c DefaultCluster -a newcomer",
    "clusterAclConfigVersion -c DefaultCluster",
    "updateAclConfig -b {broker} -a short -s newcomer-hidden",
    "updateAclConfig -b {broker} -a newcomer -s newcomer-hidden -t made=EVERYTHING",
    "deleteAclConfig -b {broker} -a nobody-here",
)
#: Each broker refuses in words of its own; ours hold no secret and no path of the machine.
_WORDS = ("error text", "error #2")


def administer(side: Side, folder: Path) -> list[dict[str, str]]:
    """The fields of each command's output, the broker's address and home replaced."""
    broker = side.broker
    peer = AdminPeer(folder, broker.name_server)
    (folder / "conf" / "tools.yml").write_text(f"accessKey: {ADMIN}\nsecretKey: {SECRET}\n")
    ports = (broker.port, broker.name_server_port)
    masks = {broker.address: "<broker>", f"{broker.root / 'home'}/": ""}
    try:
        outputs = [
            peer.run(*command.format(broker=broker.address).split(" "))
            for command in ADMIN_COMMANDS
        ]
        peer.close()
    finally:
        peer.end()
    found = []
    for output in outputs:
        fields = fields_of(output, own_ports=ports, folders={})
        found.append(
            {_masked(name, masks): _masked(value, masks) for name, value in fields.items()}
        )
    return found


def _masked(text: str, masks: dict[str, str]) -> str:
    for what, mask in masks.items():
        text = text.replace(what, mask)
    # Columns are as wide as what stands in them.
    return re.sub(" {2,}", "  ", text)


def test_commands_of_mqadmin_say_the_same(sides: dict[str, Side], tmp_path: Path) -> None:
    ours = administer(sides["our 4.9.8"], tmp_path / "our")
    java = administer(sides["java 4.9.8"], tmp_path / "java")
    for command, our, their in zip(ADMIN_COMMANDS, ours, java, strict=True):
        texts = " ".join(our.get(word, "") for word in _WORDS)
        assert "newcomer-hidden" not in texts
        assert str(tmp_path) not in texts
        for word in _WORDS:
            our.pop(word, None)
            their.pop(word, None)
        assert our == their, command
    refused = [fields.get("error code") for fields in ours]
    assert refused == [None] * 7 + ["209", "209", "210"]


LANGUAGES = ("go", "cpp", "node", "aerobee")


@pytest.mark.parametrize("language", LANGUAGES)
def test_clients_of_other_languages_sign(
    sides: dict[str, Side], language: str, tmp_path: Path
) -> None:
    """A message sent with rights comes to a consumer with rights; a client without rights is
    refused."""
    peer = PEERS[language]
    require(peer.needs or peer.name)
    for name in ("our 4.9.8", "java 4.9.8"):
        broker = sides[name].broker
        log = tmp_path / name.partition(" ")[0]
        log.mkdir()
        topic = broker.create_topic(f"signed-{language}", 8)
        right = {"access_key": "everyday", "secret_key": SECRET}
        wrong = {"access_key": "orders-reader", "secret_key": SECRET}
        forged = {"access_key": "everyday", "secret_key": "another-secret"}
        sent = peer.produce(broker, log, topic, 4, **right).wait(120)
        assert [line["failed"] for line in sent if "done" in line] == [0]
        for number, keys in enumerate((wrong, forged)):
            (log / str(number)).mkdir()
            refused = peer.produce(broker, log / str(number), topic, 1, **keys).wait(120)
            assert [line for line in refused if "ack" in line] == []
        group = f"{topic}-group"
        taken = peer.consume(broker, log, topic, group, count=4, timeout=110, **right).wait(120)
        assert len({line["body"] for line in taken if "body" in line}) == 4
