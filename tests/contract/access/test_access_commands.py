"""`aerobee` against a broker and a name server that ask for accounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.cli.main import main
from aerobee.testing import RunningBroker
from tests.contract.access.test_access import ACCOUNTS, ADMIN, OWNER, SECRET


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, Path]]:
    home = tmp_path_factory.mktemp("home")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    for name in (ADMIN, OWNER):
        (home / f"{name}.yml").write_text(f"accessKey: {name}\nsecretKey: {SECRET}\n")
    with aerobee.testing.broker(
        acl_enabled=True, nameserver_acl_enabled=True, rocketmq_home=str(home)
    ) as running:
        yield running, home


def test_commands_sign_with_the_file_that_is_named(
    guarded: tuple[RunningBroker, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, home = guarded
    monkeypatch.setenv("NAMESRV_ADDR", running.name_server)
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    create = ["topic", "create", "orders", "--queues", "2"]
    assert main(create) == 1
    assert "No accessKey is configured" in capsys.readouterr().err
    assert main([*create, "--credentials", str(home / f"{OWNER}.yml")]) == 1
    said = capsys.readouterr().err
    assert "Need admin permission" in said
    assert SECRET not in said
    assert main([*create, "--credentials", str(home / f"{ADMIN}.yml")]) == 0
    monkeypatch.setenv("AEROBEE_CREDENTIALS", str(home / f"{OWNER}.yml"))
    assert main(["message", "send", "orders", "hello"]) == 0
    pull = ["message", "pull", "orders"]
    assert main(pull) == 1
    # It reads in a group of tools, which the account is given nothing of.
    assert "No default permission for group:" in capsys.readouterr().err
    assert main([*pull, "--credentials", str(home / f"{ADMIN}.yml")]) == 0
    assert "hello" in capsys.readouterr().out
    assert main(["message", "send", "others", "hello"]) == 1
    assert "No default permission for topic:others" in capsys.readouterr().err


def test_a_file_without_keys_is_said_to_be_none(
    guarded: tuple[RunningBroker, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    running, _ = guarded
    file = tmp_path / "tools.yml"
    file.write_text("secretKey: never-shown\n")
    command = ["topic", "list", "-n", running.name_server, "--credentials", str(file)]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"{file}: accessKey and secretKey must be there" in said
    assert "never-shown" not in said
