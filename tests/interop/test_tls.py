"""TLS between ours and Java's: its client at our broker, ours at its broker.

Both brokers read the same tls.properties. A Java client checks no certificate unless told to.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.client.blocking import Producer, PullConsumer
from aerobee.client.errors import Untrusted
from aerobee.client.message import Message
from aerobee.client.options import ClientOptions, ProducerOptions
from tests.tls import CERTIFICATE, STRANGER

from . import scenarios
from .brokers import EncryptedBroker, SecuredJavaBroker
from .kit import require
from .peers import JAVA_TLS, PEERS
from .processes import wait_until


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[EncryptedBroker]:
    running = EncryptedBroker(tmp_path / "broker")
    running.start()
    yield running
    running.kill()


def test_javas_client_speaks_tls_to_a_broker_that_takes_nothing_else(
    encrypted: EncryptedBroker, tmp_path: Path
) -> None:
    require(JAVA_TLS.needs)
    scenarios.send_and_consume_all(encrypted, JAVA_TLS, tmp_path)


def test_a_plain_java_client_gets_nothing_there(encrypted: EncryptedBroker, tmp_path: Path) -> None:
    require("java-4.9.8")
    topic = encrypted.create_topic("Plain")
    producer = PEERS["java-4.9.8"].produce(encrypted, tmp_path, topic, 1, modes="sync")
    log = encrypted.root / "serve.log"
    try:
        refused = '"reason": "plain on enforcing"'
        wait_until(lambda: refused in log.read_text(), 120, "the broker has refused the client")
    finally:
        producer.end()
    with encrypted.wire() as wire:
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
