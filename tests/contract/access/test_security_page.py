"""The examples of docs/security.md are run as they stand: its file, commands, client and codes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.access.needs import BROKER_NEEDS, nothing
from aerobee.cli.main import main
from aerobee.client import Message
from aerobee.client.blocking_roles import Producer
from aerobee.client.errors import ClientError
from aerobee.client.options import ProducerOptions
from aerobee.config.loading.load import load_settings
from aerobee.protocol.codes import RequestCode as Code
from tests.tools import tool

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's commands are typed, with its file of accounts."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(blocks("yaml")[0])
    path.chmod(0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_is_looked_at_here() -> None:
    # Java's is as long as its client needs it; tests/interop has programs that sign with it.
    kinds = {"yaml", "console", "properties", "toml", "bash", "python", "java"}
    assert {kind for kind, _ in BLOCKS} == kinds


def test_commands_say_what_the_page_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = "".join(blocks("console"))
    said = ""
    for line in shown.splitlines():
        if line.startswith("$ "):
            program, *arguments = shlex.split(line[2:])
            assert program == "aerobee"
            assert main(arguments) == 0
            said += line + "\n" + capsys.readouterr().out
    assert said == shown


def test_settings_are_known(folder: Path) -> None:
    file = folder / "broker.conf"
    file.write_text("".join(blocks("properties")))
    settings = load_settings(str(file), environ={}).settings
    assert settings.acl_enabled
    assert settings.nameserver_acl_enabled
    assert settings.acl_file == "conf/plain_acl.yml"


def test_the_port_for_administrators_is_set_so(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    file = tmp_path / "broker.toml"
    file.write_text(text)
    settings = load_settings(str(file), environ={}).settings
    assert (settings.listen_host, settings.admin_host) == ("10.0.0.5", "127.0.0.1")
    assert f"{settings.admin_host}:{settings.admin_port}" == "127.0.0.1:10913"
    assert PAGE.count("127.0.0.1:10913") == 2
    assert PAGE.count(f"{settings.admin_host}:{settings.nameserver_admin_port}") == 2


def test_its_certificate_is_taken_and_trusted(folder: Path) -> None:
    (text,) = blocks("bash")
    run = subprocess.run(
        ["bash", "-e", "-c", text.replace("openssl", tool("openssl"))],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    pair = {"tls_certificate_path": folder / "broker.pem", "tls_key_path": folder / "broker.key"}
    with aerobee.testing.broker(
        tls_mode="enforcing", **{name: str(path) for name, path in pair.items()}
    ) as running:
        options = ProducerOptions(use_tls=True, trust_store=str(folder / "authority.pem"))
        with Producer(running.name_server, options=options) as producer:
            producer.send(Message("orders", b"hello"))


def test_the_client_is_let_in_and_others_are_not(folder: Path) -> None:
    (program,) = blocks("python")
    with aerobee.testing.broker(
        acl_enabled=True, acl_file=str(folder / "plain_acl.yml")
    ) as running:
        exec(compile(program, "security.md", "exec"), {"NAMESRV_ADDR": running.name_server})
        with Producer(running.name_server) as producer, pytest.raises(ClientError):
            producer.send(Message("orders", b"hello"))


#: Codes that need no more than in 4.9.8 (protocol/WIRE.md 7.1), are open as there, or not known
#: there.
AS_THERE = {11, 12, 34, 35, 38, 15, 17, 25, 215, 200, 207}
OPEN = {code for code, needs in BROKER_NEEDS.items() if needs is nothing}
NOT_THERE = {
    *(Code.RECALL_MESSAGE, Code.STAGE_CHUNK, Code.WAITING_MESSAGES),
    *(Code.LOG_RANGES, Code.REPLICA_TABLES, Code.AUDIT_EVENTS, Code.DRAIN),
    *(Code.DRAIN_STATUS, Code.MESSAGE_STATE, Code.GROUP_LAG),
    *(Code.BROKER_STATUS, Code.CLIENTS),
}


def test_every_code_that_is_stricter_is_in_the_table() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.count("|") == 5]
    text = re.sub(r"\b(\d+) to (\d+)\b", _spelled_out, " ".join(rows))
    codes = {int(code) for code in re.findall(r"\b\d{2,3}\b", text)}
    # A pull is in it twice: as what another request counts as.
    assert codes - {11} == set(BROKER_NEEDS) - AS_THERE - OPEN - NOT_THERE


def _spelled_out(found: re.Match[str]) -> str:
    return " ".join(map(str, range(int(found[1]), int(found[2]) + 1)))
