"""TLS between ours and Java's: its clients at our broker, ours at its broker.

Both brokers read the same tls.properties. A Java client checks no certificate unless told to.
Clients of other languages speak none (docs/security.md): an enforcing broker refuses them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.client.blocking_roles import Producer, PullConsumer
from aerobee.client.errors import Untrusted
from aerobee.client.message import Message
from aerobee.client.options import ClientOptions, ProducerOptions
from tests.interop import scenarios
from tests.interop.brokers import EncryptedBroker, SealedBroker, SecuredJavaBroker
from tests.interop.kit import require
from tests.interop.peers import PEERS, TLS_PEERS, encrypted, signing
from tests.interop.processes import Child, wait_until
from tests.tls import CERTIFICATE, STRANGER
from tests.tls.authority import Authority

SECRET = "interop-hidden"
ADMIN, USER, READER = "administrator", "everyday", "only-readers"
ACCOUNTS = f"""\
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: {USER}
  secretKey: {SECRET}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: {READER}
  secretKey: {SECRET}
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
"""
#: The broker's view of a client that does not trust it, where the client leaves without saying why.
SAYS_NOTHING = {"java-4.4.0": "gone"}
#: Clients that speak no TLS, of each language.
PLAIN = ("java-4.9.8", "go", "cpp", "node", "rust")


@pytest.fixture
def enforcing(tmp_path: Path) -> Iterator[EncryptedBroker]:
    """A broker that takes nothing but TLS."""
    running = EncryptedBroker(tmp_path / "broker")
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def sealed(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[SealedBroker]:
    folder = tmp_path_factory.mktemp("sealed")
    running = SealedBroker(folder, authority, ACCOUNTS, (ADMIN, SECRET))
    running.start()
    yield running
    running.kill()


def test_javas_client_speaks_tls_to_a_broker_that_takes_nothing_else(
    enforcing: EncryptedBroker, tmp_path: Path
) -> None:
    require("java-4.9.8")
    scenarios.send_and_consume_all(enforcing, encrypted("java-4.9.8"), tmp_path)


@pytest.mark.parametrize("name", TLS_PEERS)
def test_clients_with_a_certificate_and_an_account_are_served_over_tls(
    sealed: SealedBroker, authority: Authority, name: str, tmp_path: Path
) -> None:
    """Each side checks the other's certificate, and each request is signed."""
    require(name)
    shown = authority.pair(f"user-of-{name}")
    peer = signing(encrypted(name, authority.certificate, shown), (USER, SECRET))
    scenarios.send_and_consume_all(sealed, peer, tmp_path)


@pytest.mark.parametrize("name", ["java-5.5.0", "aerobee"])
def test_tls_alone_gives_nobody_a_right(
    sealed: SealedBroker, authority: Authority, name: str, tmp_path: Path
) -> None:
    require(name)
    peer = encrypted(name, authority.certificate, authority.pair(f"reader-of-{name}"))
    topic = sealed.create_topic(f"refused-{name.replace('.', '_')}")
    lines = signing(peer, (READER, SECRET)).produce(sealed, tmp_path, topic, 1).wait(120)
    assert lines[-1] == {"done": 1, "failed": 1}
    assert "AclException" in lines[0]["error"]
    with sealed.wire() as wire:
        assert wire.read_topic(topic, 8) == []


@pytest.mark.parametrize("name", [name for name in TLS_PEERS if name != "aerobee"])
def test_a_java_client_that_trusts_another_authority_sends_nothing(
    enforcing: EncryptedBroker, name: str, tmp_path: Path
) -> None:
    """It checks a certificate when it is told to, as docs/security.md says; ours is below."""
    require(name)
    topic = enforcing.create_topic("Untrusted")
    wary = encrypted(name, trusted=STRANGER)
    producer = wary.produce(enforcing, tmp_path, topic, 1)
    sends_nothing(enforcing, topic, producer, SAYS_NOTHING.get(name, "refused by client"))


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_client_gets_nothing_there(
    enforcing: EncryptedBroker, name: str, tmp_path: Path
) -> None:
    require(PEERS[name].needs or name)
    topic = enforcing.create_topic("Plain")
    mode = PEERS[name].modes[0]
    producer = PEERS[name].produce(enforcing, tmp_path, topic, 1, modes=mode)
    sends_nothing(enforcing, topic, producer, "plain on enforcing")


def sends_nothing(broker: EncryptedBroker, topic: str, producer: Child, reason: str) -> None:
    """The broker logs that it has not taken the connection, and stores nothing."""
    log = broker.root / "serve.log"
    try:
        refused = f'"reason": "{reason}"'
        wait_until(lambda: refused in log.read_text(), 120, f"a connection not taken: {reason}")
    finally:
        producer.end()
    with broker.wire() as wire:
        assert wire.read_topic(topic, 8) == []


def test_our_client_speaks_tls_to_javas_broker(tmp_path: Path) -> None:
    require("java-broker")
    java = SecuredJavaBroker(tmp_path / "java")
    java.start()
    try:
        access = {
            "access_key": java.access_key,
            "secret_key": java.secret_key,
            "use_tls": True,
            "trust_store": str(CERTIFICATE),
        }
        with Producer(java.name_server, options=ProducerOptions(**access)) as producer:
            sent = producer.send(Message("Encrypted", b"body"))
        with PullConsumer(java.name_server, options=ClientOptions(**access)) as consumer:
            found = consumer.pull(sent.queue, sent.queue_offset)
        assert [message.body for message in found.messages] == [b"body"]
        strict = ProducerOptions(**{**access, "trust_store": str(STRANGER)})
        with pytest.raises(Untrusted), Producer(java.name_server, options=strict) as producer:
            producer.send(Message("Encrypted", b"body"))
    finally:
        java.kill()
