"""Settings that a request has changed hold over restarts and reloads of the daemon, and
`aerobee config show` says where they come from."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service.kit import Served, aerobee, metric, wait_until

Serve = Callable[..., Served]
RATIO = 'aerobee_limit_used_ratio{limit="limits.max_topics"}'


def run(*arguments: str) -> str:
    """The output of a command."""
    done = subprocess.run(
        [*aerobee(), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_request_changed_holds_after_restarts_and_reloads(
    serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "aerobee.toml"
    own = "[admin]\nremote_config = true\n[broker]\nname = 'bee'\n[retention]\nhours = 24\n"
    file.write_text(own)

    def started(folder: str) -> Served:
        options = {"store": tmp_path / "store", "folder": folder}
        return serve("-c", str(file), "--set", "log.format=text", **options).ready()

    def told(daemon: Served, key: str) -> str:
        servers = f"127.0.0.1:{daemon.name_server_port}"
        found = json.loads(run("broker", "config", key, "-n", servers, "--json"))
        text: str = found["bee"][key]
        return text

    first = started("first")
    servers = f"127.0.0.1:{first.name_server_port}"
    half = metric(first, RATIO)
    run(
        "broker", "config", "-n", servers,
        "--set", "fileReservedTime=48", "--set", "limits.max_topics=10000",
    )  # fmt: skip
    assert told(first, "fileReservedTime") == "48"
    assert metric(first, RATIO) == pytest.approx(2 * half)
    # The file's own line does not count; what requests have not touched does.
    file.write_text(own.replace("24", "36") + "delete_hours = '05'\n")
    before = len(first.log)
    first.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "configuration read again" in first.log[before:], "the reload")
    assert "a request has changed it" in first.log[before:]
    assert (told(first, "fileReservedTime"), told(first, "deleteWhen")) == ("48", "05")
    first.terminate()
    assert first.wait() == 0

    again = started("again")
    assert told(again, "fileReservedTime") == "48"
    assert metric(again, RATIO) == pytest.approx(2 * half)
    store = f"store.path={tmp_path / 'store'}"
    shown = json.loads(
        run("config", "show", "retention.hours", "-c", str(file), "--set", store, "--json")
    )
    assert (shown[0]["value"], shown[0]["source"]) == (48, "remote")
    assert shown[0]["origin"].startswith(str(tmp_path / "store" / "config" / "remote.toml"))
