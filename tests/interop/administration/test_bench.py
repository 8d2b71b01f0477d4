"""`aerobee bench` against the real Java broker: its figures are those of messages it holds.

And against brokers that ask for an account or take nothing but TLS, ours and Java's.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.cli.main import main
from tests.interop.brokers import Broker, EncryptedBroker, GuardedBroker, SecuredJavaBroker
from tests.interop.kit import require
from tests.tls import CERTIFICATE

SHORT = ("--warm-up", "0", "--duration", "2", "--processes", "1", "--timeout", "30")


def bench(broker: Broker, file: Path, *words: str) -> dict[str, Any]:
    own = (*SHORT, "-n", broker.name_server, "--json", str(file))
    assert main(["bench", *words, *own]) == 0
    document: dict[str, Any] = json.loads(file.read_text())
    assert document["aerobee"]["failures"] == []
    return document


@pytest.mark.parametrize(
    "words",
    [
        ("send", "--connections", "4", "--in-flight", "4"),
        ("batch", "--batch", "16", "--connections", "2"),
        ("e2e", "--rate", "300", "--connections", "2", "--consumers", "2"),
    ],
    ids=lambda words: words[0],
)
def test_a_java_broker_holds_what_it_acknowledged(
    java_broker: Broker, tmp_path: Path, words: tuple[str, ...]
) -> None:
    document = bench(java_broker, tmp_path / "result.json", *words)
    totals = document["aerobee"]["totals"]
    assert totals["acknowledged"] == totals["stored"] > 0
    assert totals["received"] == (totals["acknowledged"] if words[0] == "e2e" else 0)
    [broker] = document["aerobee"]["brokers"].values()
    assert broker["version"].startswith("V4_9")
    assert broker["flushDiskType"] == "ASYNC_FLUSH"


def test_a_java_broker_is_pulled_from(java_broker: Broker, tmp_path: Path) -> None:
    words = ("pull", "--messages", "500", "--connections", "2")
    document = bench(java_broker, tmp_path / "result.json", *words)
    assert document["aerobee"]["totals"]["received"] > 500


KEYS = ("bench-owner", "bench-hidden-key")
ACCOUNTS = f"accounts:\n- accessKey: {KEYS[0]}\n  secretKey: {KEYS[1]}\n  admin: true\n"


@pytest.fixture(scope="module", params=["our accounts", "our TLS", "java accounts and TLS"])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Broker, tuple[str, ...], tuple[bool, bool]]]:
    """A broker, what a command has to say to be served there, and whether it signs and encrypts."""
    root = tmp_path_factory.mktemp("secured")
    file = root / "tools.yml"
    signing = ("--credentials", str(file))
    encrypting = ("--trust-store", str(CERTIFICATE))
    keys, broker = KEYS, None
    if request.param == "our accounts":
        broker, words, told = GuardedBroker(root, ACCOUNTS, KEYS), signing, (True, False)
    elif request.param == "our TLS":
        broker, words, told = EncryptedBroker(root), encrypting, (False, True)
    else:
        require("java-broker")
        broker, words, told = SecuredJavaBroker(root), (*signing, *encrypting), (True, True)
        keys = (broker.access_key, broker.secret_key)
    file.write_text(f"accessKey: {keys[0]}\nsecretKey: {keys[1]}\n")
    broker.start()
    yield broker, words, told
    broker.stop()


@pytest.mark.parametrize(
    "words",
    [
        ("send", "--connections", "2", "--in-flight", "4"),
        ("batch", "--batch", "16", "--connections", "2"),
        ("pull", "--messages", "200", "--connections", "2"),
        ("e2e", "--rate", "300", "--connections", "2", "--consumers", "2"),
    ],
    ids=lambda words: words[0],
)
def test_a_broker_that_asks_for_more_holds_what_it_acknowledged(
    secured: tuple[Broker, tuple[str, ...], tuple[bool, bool]],
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    broker, security, told = secured
    own = bench(broker, tmp_path / "result.json", *words, *security)["aerobee"]
    assert (own["signed"], own["encrypted"]) == told
    totals = own["totals"]
    if words[0] == "pull":
        assert totals["received"] > 0
    else:
        assert totals["acknowledged"] == totals["stored"] > 0
    assert totals["received"] == totals["acknowledged"] or words[0] != "e2e"
    assert KEYS[1] not in json.dumps(own)
