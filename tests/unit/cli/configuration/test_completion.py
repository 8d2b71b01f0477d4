"""Completion and the manual page know every command and every option."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from aerobee.cli.arguments.configuration import SHELLS
from aerobee.cli.configuration import completion
from aerobee.cli.configuration.completion import actions_of, declared_parser, manual_page
from aerobee.cli.main import COMMANDS, main

# Prints what bash would offer for the words of a command line that is being typed.
ASK_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
name=$(complete -p aerobee | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
$name
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("completion"), {}
    for shell in SHELLS:
        found[shell] = folder / shell
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(completion, "show_script", found[shell].write_text)
            assert main(["completion", shell]) == 0
    return found


def offered(scripts: dict[str, Path], *words: str) -> set[str]:
    done = subprocess.run(
        ["bash", "-c", ASK_BASH, "bash", scripts["bash"], "aerobee", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_bash_offers_commands_and_options(scripts: dict[str, Path]) -> None:
    assert offered(scripts, "top") == {"topic"}
    assert {"list", "use", "show", "add", "remove"} <= offered(scripts, "context", "")
    assert "--credentials" in offered(scripts, "topic", "list", "--")
    assert {"lag", "disk", "dlq"} <= offered(scripts, "check", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_each_option_and_is_one(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text()
    options = {
        option.lstrip("-")
        for action in actions_of(declared_parser())
        if action.help != argparse.SUPPRESS
        for option in action.option_strings
    }
    missing = {one for one in options if one not in text}
    assert missing == set()
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n", scripts[shell]], check=False).returncode == 0


def test_the_manual_page_has_each_command() -> None:
    page = manual_page().replace("\\-", "-")
    hidden = {"pipeline", "pipeline launch"}  # words of a job follow, which have names of their own
    missing = [one for one in COMMANDS if f"aerobee {one}" not in page and one not in hidden]
    assert missing == []
    assert "--credentials" in page


def test_without_the_library_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "aerobee[completion]" in capsys.readouterr().err
