"""What the process says and does around the daemon: signals while it starts, its last line."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker import process
from aerobee.config.load import Loaded, load_settings
from aerobee.store.message_store import MessageStore

WAIT_S = 10.0


def loaded(tmp_path: Path, **changes: object) -> Loaded:
    """A small broker on free ports, with its own name server."""
    found = load_settings(environ={}, flags={"store_path": str(tmp_path / "store")})
    small: dict[str, object] = {
        "listen_port": 0,
        "nameserver_port": 0,
        "http_enabled": False,
        "commit_log_segment_bytes": 1 << 20,
        "index_slots": 100,
        "index_entries": 400,
    }
    settings = found.settings.with_changes(**{**small, **changes})
    return Loaded(settings, found.origins, (), (), None, None)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_during_the_recovery_is_heard_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    signals: int,
) -> None:
    caplog.set_level(logging.INFO)
    left_at_once: list[int] = []
    open_store = MessageStore.open

    def open_and_be_told_to_stop(*arguments: Any, **options: Any) -> MessageStore:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: "will stop when the recovery is finished" in caplog.text)
        if signals == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            wait_for(lambda: left_at_once)
        return open_store(*arguments, **options)

    monkeypatch.setattr(MessageStore, "open", open_and_be_told_to_stop)
    monkeypatch.setattr(os, "_exit", left_at_once.append)
    assert process.run(loaded(tmp_path)) == 0
    assert left_at_once == [128 + 15] * (signals - 1)
    said = capfd.readouterr().err
    assert "ready in" not in said
    assert "clients are told" not in said
    assert not (tmp_path / "store" / "abort").exists(), "stopped in order"
