"""A broker per module and a plain connection to it, for tests that speak the wire themselves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import aerobee.testing
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.remoting.calling.caller import Caller
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.inspect.finding_kinds import Level
from aerobee.testing import RunningBroker
from tests.ports import free_port

TIMEOUT_S = 10.0
# Forms of the hot path: the form that the environment asks for, and the plain form.
FORMS = ("asked for", "off")


def damage_of(root: Path) -> list[str]:
    """The damage that `store verify` sees in a store whose broker was stopped."""
    report = verify(Settings.for_tests(store_path=str(root)))
    return [f"{one.path}: {one.what}" for one in report.findings if one.level is Level.DAMAGE]


class Wire:
    """One connection to a broker, with the requests the tests need most."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @classmethod
    async def to(cls, address: str) -> Wire:
        host, _, port = address.rpartition(":")
        return cls(await Caller.connect(host, int(port), TIMEOUT_S))

    async def call(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b""
    ) -> Command:
        texts = {name: str(value) for name, value in (ext or {}).items()}
        return await self.caller.call(make_request(code, texts, body), TIMEOUT_S)

    async def send(self, topic: str, body: bytes = b"hello", **fields: Any) -> Command:
        """A SEND_MESSAGE_V2; keyword arguments are fields of its header."""
        values: dict[str, Any] = {
            "producer_group": "PG",
            "topic": topic,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": time.time_ns() // 1_000_000,
            "flag": 0,
            "properties": "WAIT\x01true",
        }
        values.update(fields)
        header = SendMessageHeader(**values)
        code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
        return await self.call(code, header.to_ext(), body)

    async def pull(self, topic: str, offset: int = 0, **fields: Any) -> Command:
        """A PULL_MESSAGE that brings its own subscription; keyword arguments by wire name."""
        values: dict[str, Any] = {
            "consumerGroup": "CG",
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        values.update(fields)
        return await self.call(RequestCode.PULL_MESSAGE, values)

    async def await_message(self, topic: str, offset: int = 0, **fields: Any) -> Command:
        """A pull that waits for a message that comes after a delay."""
        held = {"sysFlag": 4 | 2, "suspendTimeoutMillis": 8000}
        return await self.pull(topic, offset, **{**held, **fields})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Modules that say BOTH_FORMS ask a broker of each form of the hot path."""
    if "running" in metafunc.fixturenames and getattr(metafunc.module, "BOTH_FORMS", False):
        metafunc.parametrize("running", FORMS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """A broker for all tests of a module, with its metrics where the module says WITH_METRICS, and
    with its port for slaves where it says WITH_SLAVES."""
    settings: dict[str, Any] = {}
    if getattr(request.module, "WITH_METRICS", False):
        settings = {"http_enabled": True, "http_port": free_port()}
    if getattr(request.module, "WITH_SLAVES", False):
        settings["ha_enabled"] = True
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request, "param", FORMS[0]) == "off":
            patch.setenv("AEROBEE_NATIVE", "off")
        with aerobee.testing.broker(**settings) as broker:
            yield broker


@pytest.fixture
async def wire(running: RunningBroker) -> AsyncIterator[Wire]:
    connection = await Wire.to(running.broker)
    yield connection
    connection.caller.close()
