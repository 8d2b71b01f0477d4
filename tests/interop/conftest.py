"""Fixtures of the interop tests: brokers that live as long as the session, peers that are here.

A part that setup.sh could not bring skips its tests with one line; under CI=true it fails them.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.brokers import Broker, JavaBroker, OurBroker
from tests.interop.kit import require
from tests.interop.peers import PEERS, Peer
from tests.interop.processes import Child

# The broker under test; `java` shows what the real one does with the same clients.
AGAINST = os.environ.get("AEROBEE_INTEROP_AGAINST", "our")


def make_broker(kind: str, root: Path, **options: object) -> Broker:
    if kind == "our":
        return OurBroker(root, **options)  # type: ignore[arg-type]
    require("java-broker")
    return JavaBroker(root, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker under test, one for the session; tests keep apart by topic and group."""
    running = make_broker(AGAINST, tmp_path_factory.mktemp(f"{AGAINST}-broker")).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def java_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The real Java broker, one for the session."""
    running = make_broker("java", tmp_path_factory.mktemp("java-broker")).start()
    yield running
    running.stop()


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Makes brokers of one test (kind, name, **options), not started; ends those still running."""
    made: list[Broker] = []

    def make(kind: str = AGAINST, name: str = "broker", **options: object) -> Broker:
        made.append(make_broker(kind, tmp_path / name, **options))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Peer:
    """A client, by its name as the parameter."""
    one = PEERS[request.param]
    require(one.needs or one.name)
    return one


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Processes to be ended with the test, however it ends."""
    running: list[Child] = []
    yield running
    for child in running:
        child.end()
