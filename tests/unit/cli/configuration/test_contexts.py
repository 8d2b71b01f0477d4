"""`aerobee context`, and commands that use named connections."""

from __future__ import annotations

import argparse
import json
import stat
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.cli.configuration import context_file
from aerobee.cli.configuration.context_file import (
    Context,
    Contexts,
    apply_context,
    contexts_path,
    read_contexts,
    toml_of,
)
from aerobee.cli.main import main
from aerobee.cli.printing.output import CommandFailed
from tests.ports import free_port


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and an environment that names no connection."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "AEROBEE_CONTEXT", "NAMESRV_ADDR", "AEROBEE_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def arguments(**given: object) -> argparse.Namespace:
    unset: dict[str, object] = dict.fromkeys(("context", *Context._fields))
    return argparse.Namespace(**{**unset, "tls": False, **given})


def applied(**given: object) -> argparse.Namespace:
    parsed = arguments(**given)
    apply_context(parsed)
    return parsed


def add(name: str, *options: str) -> None:
    assert main(["context", "add", name, *options]) == 0


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    contexts = Contexts(
        {
            "a.b": Context("h:1;[::1]:2", ("h:3", "h:4"), '/a "file"\\', True, "t", "c", "k"),
            "plain": Context("h:1"),
        },
        "a.b",
    )
    file = tmp_path / "contexts.toml"
    file.write_text(toml_of(contexts))
    assert read_contexts(file) == contexts


def test_the_file_is_its_owners_alone_and_has_no_key(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = home / "tools.yml"
    keys.write_text('accessKey: planted-access\nsecretKey: "planted-secret"\n')
    add("night", "-n", "h:1", "--credentials", str(keys), "--use")
    file = contexts_path()
    assert file == home / ".config/aerobee/contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "planted" not in file.read_text()
    assert main(["context", "show"]) == 0
    assert "planted" not in "".join(capsys.readouterr())


def test_paths_are_kept_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    add("a", "-n", "h:1", "--trust-store", "ca.pem")
    assert read_contexts(contexts_path()).named["a"].trust_store == str(home / "ca.pem")


def test_the_context_in_use_counts_as_a_whole_or_not_at_all(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("prod", "-n", "prod:1", "--credentials", "/k.yml", "--tls", "--admin", "prod:2", "--use")
    got = applied()
    assert (got.name_servers, got.credentials, got.tls) == ("prod:1", "/k.yml", True)
    assert got.admin == ["prod:2"]
    elsewhere = applied(name_servers="test:1")
    assert (elsewhere.credentials, elsewhere.tls, elsewhere.admin) == (None, False, None)
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert (applied().name_servers, applied().credentials) == (None, None)
    monkeypatch.setenv("AEROBEE_CONTEXT", "prod")
    assert applied().name_servers == "prod:1"
    add("other", "-n", "other:1")
    assert applied(context="other").name_servers == "other:1"
    named = applied(context="prod", name_servers="near:1")
    assert (named.name_servers, named.credentials) == ("near:1", "/k.yml")


def test_a_command_asks_the_brokers_of_its_context(capsys: pytest.CaptureFixture[str]) -> None:
    with testing.broker(broker_name="bee") as running:
        add("here", "-n", running.name_server)
        add("away", "-n", f"127.0.0.1:{free_port()}", "--use")
        assert main(["topic", "list", "--all", "--json", "--context", "here"]) == 0
        assert "bee" in capsys.readouterr().out
        assert main(["topic", "list"]) == 3


def test_contexts_are_listed_used_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    def listed() -> list[tuple[str, bool]]:
        capsys.readouterr()
        assert main(["context", "list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        return [(one["context"], one["is_current"]) for one in found]

    assert main(["context", "show"]) == 1
    add("b", "-n", "h:1")
    add("a", "-n", "h:2")
    assert main(["context", "use", "b"]) == 0
    assert listed() == [("a", False), ("b", True)]
    assert main(["context", "add", "a", "-n", "h:3"]) == 1
    add("a", "-n", "h:3", "--replace")
    assert read_contexts(contexts_path()).named["a"].name_servers == "h:3"
    assert main(["context", "use", "--none"]) == 0
    assert listed() == [("a", False), ("b", False)]
    assert main(["context", "use", "b"]) == 0
    assert main(["context", "remove", "b"]) == 0
    assert listed() == [("a", False)]
    assert main(["context", "use", "aa"]) == 1
    assert "did you mean a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[contexts", "is not TOML"),
        ("current = 'a'", "no context of that name"),
        ("current = ['a']", "no context of that name"),
        ("[contexts.a]\nname_servers = 'h:1'\nsecretKey = 'planted'", "that credentials names"),
        (
            "[contexts.a]\nname_servers = 'h:1'\ncertifikate = 'planted'",
            "did you mean certificate?",
        ),
        ("[contexts.a]\nname_servers = 5", "needs a text as name_servers"),
        ("[contexts.a]\nname_servers = 'h:1'\ntls = 'planted'", "needs true or false as tls"),
        ("[contexts.a]\nname_servers = 'h:1'\nadmin = 'planted'", "needs a list of texts as admin"),
        ("[contexts.a]", "no name_servers"),
        ("[contexts.'a b']\nname_servers = 'h:1'", "which none may be named"),
        ("contexts = 3", "something else than tables"),
        ("name = 3", "unknown key name"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_broken_file_is_a_clear_error(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "contexts.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CommandFailed) as failed:
        read_contexts(file)
    assert says in str(failed.value)
    assert str(file) in str(failed.value)
    assert "planted" not in str(failed.value)


def test_a_broken_file_harms_no_command_that_does_not_need_it() -> None:
    file = contexts_path()
    file.parent.mkdir(parents=True)
    file.write_text("[")
    assert applied(name_servers="h:1").name_servers == "h:1"
    with pytest.raises(CommandFailed):
        applied()


def test_names_and_addresses_are_checked_before_they_are_kept() -> None:
    assert main(["context", "add", "a b", "-n", "h:1"]) == 1
    assert main(["context", "add", "a", "-n", "no port"]) == 2
    assert not context_file.contexts_path().exists()
