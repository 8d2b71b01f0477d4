"""R14 at the name server: the accounts that may change its answers, where it asks for accounts.

Without accounts a stranger can take over a broker's name or its address, and clients go to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import aerobee.testing
from aerobee.access.needs import NAME_SERVER_NEEDS
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.signature import signed
from aerobee.testing import RunningBroker
from tests.contract.access.test_access import ACCOUNTS, ADMIN, OWNER, SECRET
from tests.contract.conftest import Wire

CHANGES = {
    *(Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG),
    *(Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER),
    *(Code.DELETE_TOPIC_IN_NAMESRV, Code.REGISTER_TOPIC_IN_NAMESRV, Code.UPDATE_NAMESRV_CONFIG),
    # Changes nothing, and tells who has.
    Code.AUDIT_EVENTS,
}
#: The registration of the broker beside, with an address that is not its own.
STOLEN = {
    "brokerName": "test-broker",
    "brokerAddr": "192.0.2.66:10911",
    "clusterName": "DefaultCluster",
    "brokerId": 0,
    "haServerAddr": "192.0.2.66:10912",
    "compressed": "false",
    "bodyCrc32": 0,
}
KV = {"namespace": "N", "key": "k", "value": "v"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    file = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    with aerobee.testing.broker(
        acl_enabled=True, nameserver_acl_enabled=True, acl_file=str(file)
    ) as running:
        yield running


@pytest.fixture
async def wire(guarded: RunningBroker) -> AsyncIterator[Wire]:
    wire = await Wire.to(guarded.name_server)
    yield wire
    wire.caller.close()


async def ask(
    wire: Wire, code: int, ext: dict[str, Any], by: str | None, secret: str = SECRET
) -> Command:
    texts = {name: str(value) for name, value in ext.items()}
    return await wire.call(code, texts if by is None else signed(texts, b"", by, secret))


def is_refused(answer: Command) -> bool:
    return (answer.remark or "").startswith("org.apache.rocketmq.acl.common.AclException: ")


def test_the_table_has_every_change() -> None:
    assert set(NAME_SERVER_NEEDS) == CHANGES


@pytest.mark.parametrize("code", sorted(CHANGES), ids=lambda code: Code(code).name.lower())
async def test_changes_are_an_administrators(wire: Wire, code: int) -> None:
    ext = {**STOLEN, **KV, "topic": "none"}
    for by, secret in ((None, ""), ("nobody-here", SECRET), (ADMIN, "another"), (OWNER, SECRET)):
        assert is_refused(await ask(wire, code, ext, by, secret)), by
    if code not in (Code.REGISTER_BROKER, Code.UNREGISTER_BROKER):
        assert not is_refused(await ask(wire, code, {**KV, "topic": "none"}, ADMIN))


async def test_anybody_asks_for_routes(wire: Wire) -> None:
    for code in (Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO, Code.GET_KV_CONFIG):
        assert not is_refused(await ask(wire, code, {"topic": "TBW102", **KV}, None))


async def test_nobody_takes_over_a_brokers_name_or_takes_it_away(
    guarded: RunningBroker, wire: Wire
) -> None:
    for code in (Code.REGISTER_BROKER, Code.UNREGISTER_BROKER):
        for by in (None, OWNER):
            assert is_refused(await ask(wire, code, STOLEN, by))
            own = {**STOLEN, "brokerAddr": guarded.broker}
            assert is_refused(await ask(wire, code, own, by))
    route = await ask(wire, Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}, None)
    assert route.code == ResponseCode.SUCCESS
    assert guarded.broker in route.body.decode()
    assert "192.0.2.66" not in route.body.decode()
