"""docs/incidents.md, tried: each trouble is made, the commands say its cause, and mend it."""

from __future__ import annotations

import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import aerobee.broker.core
from aerobee import testing
from aerobee.cli.main import main
from aerobee.client.blocking_roles import Admin, Producer, PushConsumer
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ConsumeFrom, PushOptions
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.store.disk.files import DiskSpace, Files
from aerobee.testing import RunningBroker
from tests.contract.incidents.book import Incident, filled, incidents, words_of
from tests.interop.wire import SUCCESS, Wire
from tests.ports import free_port
from tests.tls.authority import Authority

WAIT_S = 20.0
BROKER = "bee"
BOOK = incidents()
EAGER = {"consume_from": ConsumeFrom.FIRST, "offset_store_interval_s": 0.05}


class Reader:
    """Somebody who reads a section of the page, and types its commands."""

    def __init__(
        self, incident: Incident, names: Mapping[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._incident = incident
        self._names = names
        self._capsys = capsys

    def run(self, command: str, *more: str) -> str:
        """Run a command; returns both streams."""
        self._capsys.readouterr()
        words = words_of(command, self._names)
        server = self._names.get("NAME_SERVER")
        main([*words, *more, *(("-n", server) if server else ())])
        said = self._capsys.readouterr()
        return said.out + said.err

    def look(self) -> str:
        """Run the commands that show the cause; they say all that the page promises."""
        assert 1 <= len(self._incident.looks) <= 2
        said = "\n".join(self.run(command) for command in self._incident.looks)
        for text in self._incident.says:
            assert filled(text, self._names) in said, said
        return said

    def mend(self, *more: str) -> str:
        """Run the commands that mend it."""
        assert self._incident.mends
        return "\n".join(self.run(command, *more) for command in self._incident.mends)


Read = Callable[..., Reader]


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Read:
    """Open the page at a section."""

    def read(section: str, **names: str) -> Reader:
        return Reader(BOOK[section], names, capsys)

    return read


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    """A broker that says after a moment, and not after a minute, that a queue is stuck."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(aerobee.broker.core, "STUCK_LOOK_S", 0.05)
            patch.setattr(aerobee.broker.core, "STUCK_S", 0.2)
            settings = {"broker_name": BROKER, "auto_create_topic": False}
            broker = stack.enter_context(testing.broker(**settings))
        yield broker


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Listeners that fail on purpose write no tracebacks into what commands say."""
    client = logging.getLogger("aerobee.client")
    before = client.level
    client.setLevel(logging.CRITICAL)
    yield
    client.setLevel(before)


@pytest.fixture
def admin(running: RunningBroker) -> Iterator[Admin]:
    with Admin(running.name_server) as admin:
        yield admin


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)


def fill(running: RunningBroker, admin: Admin, topic: str, *bodies: bytes, tags: str = "") -> None:
    """Make a topic of one queue with these messages."""
    admin.create_topic(topic, queues=1)
    with Producer(running.name_server, "P") as producer:
        for body in bodies:
            message = Message(topic, body, tags=tags)
            producer.send(message, queue=MessageQueue(topic, BROKER, 0))


@contextmanager
def consuming(
    running: RunningBroker, group: str, topic: str, expression: str = "*", *, fails: bool = False,
    until_set: threading.Event | None = None, **options: object,
) -> Iterator[queue.Queue[bytes]]:  # fmt: skip
    """A member that is online, and the bodies that it gets."""
    got: queue.Queue[bytes] = queue.Queue()

    def listener(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            got.put(message.body)
        if until_set is not None:
            until_set.wait(WAIT_S)
        if fails:
            raise RuntimeError("it fails on everything")

    wanted = PushOptions(**{**EAGER, **options})  # type: ignore[arg-type]
    with PushConsumer(running.name_server, group, listener, wanted) as consumer:
        consumer.subscribe(topic, expression)
        yield got


# --- consumers ------------------------------------------------------------------------------------


def test_mixed_subscriptions(running: RunningBroker, admin: Admin, read: Read) -> None:
    fill(running, admin, "Mixed", b"a", tags="A")
    reader = read("mixed-subscriptions", GROUP="MX", TOPIC="Mixed", NAME_SERVER=running.name_server)
    with consuming(running, "MX", "Mixed", "A"), consuming(running, "MX", "Mixed", "B"):
        until(lambda: "2 members online" in reader.run("aerobee group explain GROUP"))
        assert "'A'" in (said := reader.look())
        assert "'B'" in said
    with consuming(running, "MX", "Mixed", "A || B") as got:
        reader.mend("--yes")
        assert got.get(timeout=WAIT_S) == b"a"


def test_failing(running: RunningBroker, admin: Admin, read: Read) -> None:
    fill(running, admin, "Hard", b"x")
    with consuming(running, "FL", "Hard", fails=True) as got:
        got.get(timeout=WAIT_S)
        reader = read("failing", GROUP="FL", NAME_SERVER=running.name_server)
        until(lambda: "wait for their next try" in reader.run("aerobee group explain GROUP"))
        reader.look()


def test_hanging(running: RunningBroker, admin: Admin, read: Read) -> None:
    fill(running, admin, "Hung", b"first", b"second")
    released = threading.Event()
    with consuming(running, "HG", "Hung", until_set=released) as got:
        assert got.get(timeout=WAIT_S) == b"first"
        [member] = next(iter(admin.group_state("HG").values())).connections
        names = {"GROUP": "HG", "CLIENT_ID": member.client_id}
        reader = read("hanging", **names, NAME_SERVER=running.name_server)
        until(lambda: "stuck" in reader.run("aerobee group explain GROUP"))
        reader.look()
        released.set()


def test_poison(running: RunningBroker, admin: Admin, read: Read) -> None:
    fill(running, admin, "Strict", b"poison", b"good")
    reader = read("poison", GROUP="PO", TOPIC="Strict", NAME_SERVER=running.name_server)
    with consuming(running, "PO", "Strict", orderly=True, fails=True, consume_batch=1) as got:
        assert got.get(timeout=WAIT_S) == b"poison"
        until(lambda: "stuck" in reader.run("aerobee group explain GROUP"))
        reader.look()
        reader.mend()
        until(lambda: got.get(timeout=WAIT_S) == b"good")
    assert "poison" in reader.run("aerobee dlq peek GROUP")


def test_shared_client_id(running: RunningBroker, admin: Admin, read: Read) -> None:
    fill(running, admin, "Shared", b"x")
    reader = read("shared-client-id", GROUP="SH", NAME_SERVER=running.name_server)
    same = {"instance_name": "same"}
    with consuming(running, "SH", "Shared", **same), consuming(running, "SH", "Shared", **same):
        until(lambda: "use the client id" in reader.run("aerobee group explain GROUP"))
        reader.look()


def test_dead_letters(running: RunningBroker, admin: Admin, read: Read) -> None:
    fill(running, admin, "Deadly", b"poison")
    fill(running, admin, "Untouched")
    names = {"GROUP": "DL", "TOPIC": "Deadly", "NAME_SERVER": running.name_server}
    reader = read("dead-letters", **names)
    with consuming(running, "DL", "Deadly", fails=True, max_reconsume=0) as got:
        got.get(timeout=WAIT_S)
        until(lambda: "DL" in reader.run("aerobee dlq list"))
    assert "poison" in reader.look()
    with (
        consuming(running, "DL", "Deadly") as again,
        consuming(running, "Other", "Deadly") as other,
    ):
        assert other.get(timeout=WAIT_S) == b"poison"
        reader.mend()
        assert again.get(timeout=WAIT_S) == b"poison"
        assert other.empty()


def test_reset_gone_wrong(running: RunningBroker, admin: Admin, read: Read) -> None:
    fill(running, admin, "Moved", b"1", b"2", b"3")
    where = MessageQueue("Moved", BROKER, 0)
    names = {"GROUP": "RS", "TOPIC": "Moved", "BROKER": BROKER, "PLACES": "0:3"}
    reader = read("reset-gone-wrong", **names, NAME_SERVER=running.name_server)
    with consuming(running, "RS", "Moved") as got:
        for _ in range(3):
            got.get(timeout=WAIT_S)
        until(lambda: admin.group_progress("RS", "Moved")[where].consumer_offset == 3)
        said = reader.run("aerobee offset reset GROUP TOPIC --to earliest --yes")
        undo = re.search(r"aerobee offset undo RS (\S+)", said)
        assert undo is not None, said
        assert undo[1] == f"Moved/{BROKER}=0:3"
        reader.look()
        reader.mend()
        until(lambda: admin.group_progress("RS", "Moved")[where].consumer_offset == 3)


# --- producers ------------------------------------------------------------------------------------


def test_no_route(running: RunningBroker, admin: Admin, read: Read) -> None:
    fill(running, admin, "Invoices")
    reader = read("no-route", TOPIC="Invocies", NAME_SERVER=running.name_server)
    assert "Invoices" in reader.look()
    reader.mend()
    with Producer(running.name_server, "P") as producer:
        producer.send(Message("Invocies", b"x"))


def test_wrong_permission(running: RunningBroker, admin: Admin, read: Read) -> None:
    admin.create_topic("Closed", queues=1, perm=4)
    reader = read("wrong-permission", TOPIC="Closed", NAME_SERVER=running.name_server)
    reader.look()
    reader.mend()
    with Producer(running.name_server, "P") as producer:
        producer.send(Message("Closed", b"x"))


def test_refused(running: RunningBroker, read: Read) -> None:
    with Wire(running.broker) as wire:
        assert wire.send("NeverMade", 0, b"x").code != SUCCESS
    said = read("refused", NAME_SERVER=running.name_server).look()
    assert "127.0.0.1" in said


# --- brokers and machines -------------------------------------------------------------------------


def configuration(folder: Path, **values: object) -> str:
    """A file as a broker would be started with."""
    path = folder / "broker.conf"
    base = {"storePathRootDir": folder / "store", "listenPort": free_port(), "brokerName": BROKER}
    path.write_text("".join(f"{key}={value}\n" for key, value in {**base, **values}.items()))
    return str(path)


def test_wrong_address(tmp_path: Path, read: Read) -> None:
    # 127.0.0.2 is this machine as well, and nothing listens there.
    wrong = {"advertised_host": "127.0.0.2", "broker_name": "astray"}
    with testing.broker(nameserver_port=free_port(), **wrong) as broker:
        file = configuration(tmp_path, namesrvAddr=broker.name_server)
        said = read("wrong-address", FILE=file).look()
    assert "refused" in said


def test_offsets_lost(tmp_path: Path, read: Read) -> None:
    where = MessageQueue("Kept", BROKER, 0)
    settings = {"broker_name": BROKER, "store_path": str(tmp_path)}
    with testing.broker(**settings) as broker, Admin(broker.name_server) as admin:
        fill(broker, admin, "Kept", b"1", b"2")
        admin.commit_offset("OL", where, 1)
    for file in (tmp_path / "config").glob("consumerOffset.json*"):
        file.write_text('{"offsetTable":{')
    with testing.broker(**settings) as broker, Admin(broker.name_server) as admin:
        names = {"GROUP": "OL", "TOPIC": "Kept", "NAME_SERVER": broker.name_server}
        reader = read("offsets-lost", **names)
        assert "consumerOffset.json" in reader.look()
        reader.mend("--yes")
        assert admin.group_progress("OL", "Kept")[where].consumer_offset == 2


def test_disk_filling(running: RunningBroker, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "disk_space", lambda _self, _path: DiskSpace(88, 12))
    reader = read("disk-filling", NAME_SERVER=running.name_server)
    # The broker looks at its disk now and then.
    until(lambda: "DISK CRITICAL" in reader.run("aerobee check disk"))
    assert "88 %" in reader.look()


def test_port_taken(tmp_path: Path, read: Read) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        file = configuration(tmp_path, listenPort=other.getsockname()[1])
        said = read("port-taken", FILE=file).look()
        assert str(other.getsockname()[1]) in said


def test_name_server_down(running: RunningBroker, tmp_path: Path, read: Read) -> None:
    dead = f"127.0.0.1:{free_port()}"
    file = configuration(tmp_path, namesrvAddr=f"{running.name_server};{dead}")
    assert dead in read("name-server-down", FILE=file).look()


def test_certificate_over(tmp_path: Path, read: Read) -> None:
    old = Authority(tmp_path).pair("bee", days=-1)
    said = read("certificate-over", CERTIFICATE=str(old.certificate)).look()
    assert re.search(r"-[\d.]+", said), said


def test_each_section_is_tried() -> None:
    tried = {name.removeprefix("test_").replace("_", "-") for name in globals() if "test_" in name}
    assert set(BOOK) <= tried
