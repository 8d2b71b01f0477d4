"""Changes of accounts that administrators ask for at the same time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.access.account_service import AccessService
from aerobee.access.control import AccessControl
from aerobee.access.needs import BROKER_NEEDS
from aerobee.broker.requests.administration.account_requests import AccessRequests
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import make_request
from aerobee.remoting.connections.connection import Connection

SECRET = "very-secret"
ADMINISTRATORS = "admin-one", "admin-two"
FILE = "accounts:\n" + "".join(
    f"- accessKey: {key}\n  secretKey: {SECRET}\n  admin: true\n" for key in ADMINISTRATORS
)
CONNECTION = cast(Connection, SimpleNamespace(peer=("127.0.0.1", 1)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    return path


@pytest.fixture
async def service(file: Path) -> AsyncIterator[AccessService]:
    loop = asyncio.get_running_loop()
    service = AccessService(
        loop,
        "",
        str(file),
        lambda rules: AccessControl(rules, BROKER_NEEDS, lambda _: None, loop.time),
    )
    yield service
    await service.close()


@pytest.mark.parametrize(
    ("asked", "ext", "refusal"),
    [
        (AccessRequests.delete, {}, ResponseCode.DELETE_ACL_CONFIG_FAILED),
        (AccessRequests.put, {"admin": "false"}, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED),
    ],
)
async def test_of_two_administrators_who_are_taken_away_at_once_one_stays(
    service: AccessService, asked: Any, ext: dict[str, str], refusal: int
) -> None:
    requests = AccessRequests(Settings(), "127.0.0.1:1", service, lambda: 1)
    code = RequestCode.DELETE_ACL_CONFIG  # the handler is called by itself
    steps = [
        asked(requests, CONNECTION, make_request(code, {"accessKey": key, **ext}))
        for key in ADMINISTRATORS
    ]
    # Both are under way before one has changed anything.
    await asyncio.wait([next(one) for one in steps])
    with pytest.raises(StopIteration):
        next(steps[0])
    with pytest.raises(BadRequest, match="admin-two is the last administrator") as raised:
        next(steps[1])
    assert raised.value.code == refusal
    left = service.loaded.rules.accounts.values()
    assert [one.access_key for one in left if one.admin] == ["admin-two"]


async def test_white_addresses_do_not_stand_in_for_the_last_administrator(
    file: Path, service: AccessService
) -> None:
    """There may be nobody at them, and then nobody could make another account."""
    one = FILE.split("- accessKey")[1]
    text = f"globalWhiteRemoteAddresses:\n- 192.0.2.77\naccounts:\n- accessKey{one}"
    await asyncio.to_thread(file.write_text, text)
    await service.read_again()
    requests = AccessRequests(Settings(), "127.0.0.1:1", service, lambda: 1)
    command = make_request(RequestCode.DELETE_ACL_CONFIG, {"accessKey": "admin-one"})
    steps = requests.delete(CONNECTION, command)
    await asyncio.wait([next(steps)])
    with pytest.raises(BadRequest, match="admin-one is the last administrator"):
        next(steps)
