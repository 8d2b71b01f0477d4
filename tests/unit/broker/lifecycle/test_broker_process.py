"""The process around the daemon: signals while it starts, its last line."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.lifecycle import broker_process
from aerobee.broker.lifecycle.daemon import Daemon
from aerobee.broker.monitoring.systemd import Notifier
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.model import Settings
from aerobee.store.message_store import MessageStore
from tests.ports import free_port

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
    assert broker_process.run(loaded(tmp_path), lambda _: loaded(tmp_path)) == 0
    assert left_at_once == [128 + 15] * (signals - 1)
    said = capfd.readouterr().err
    assert "ready in" not in said
    assert "clients are told" not in said
    assert not (tmp_path / "store" / "abort").exists(), "stopped in order"


async def said_at_the_start(settings: Settings) -> list[str]:
    daemon = Daemon(settings)
    await daemon.start()
    try:
        return broker_process.banner(daemon, 0.78)
    finally:
        await daemon.stop()


async def test_a_registered_broker_is_ready(tmp_path: Path) -> None:
    lines = await said_at_the_start(loaded(tmp_path).settings)
    assert lines[-1] == "ready in 0.78 s"
    assert not any("warning" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "role"),
    [
        ({"broker_role": "SYNC_MASTER"}, "SYNC_MASTER, brokerId 0"),
        ({"ha_enabled": True}, "ASYNC_MASTER, brokerId 0"),
        (
            {"broker_role": "SLAVE", "broker_id": 2},
            "SLAVE, brokerId 2, of the master that the name servers know",
        ),
        (
            {"broker_role": "SLAVE", "broker_id": 1, "ha_master_address": "127.0.0.9:10912"},
            "SLAVE, brokerId 1, of the master at 127.0.0.9:10912",
        ),
    ],
)
async def test_a_broker_with_a_port_for_slaves_says_its_role(
    tmp_path: Path, changes: dict[str, object], role: str
) -> None:
    ha_port = free_port()
    settings = loaded(tmp_path, ha_listen_port=ha_port, **changes).settings
    lines = await said_at_the_start(settings)
    assert f"  role              {role}" in lines
    assert f"  port for slaves   127.0.0.1:{ha_port}" in lines


async def test_a_broker_that_nobody_told_of_replication_says_no_role(tmp_path: Path) -> None:
    lines = await said_at_the_start(loaded(tmp_path).settings)
    assert not [line for line in lines if "role" in line or "slaves" in line]


async def test_a_broker_no_name_server_accepted_does_not_say_ready(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{nobody.getsockname()[1]}"
        changes = {"name_servers": server, "nameserver_enabled": False}
        lines = await said_at_the_start(loaded(tmp_path, **changes).settings)
    assert lines[-1] == "serving, not registered, after 0.78 s"
    warnings = " ".join(line for line in lines if line.startswith("  warning"))
    assert "no name server has accepted the registration" in warnings
    assert f"is {server}: start one there (aerobee nameserver)" in warnings
    assert "remove namesrvAddr" in warnings


async def test_a_broker_without_a_name_server_is_ready_as_it_was_asked_to_be(
    tmp_path: Path,
) -> None:
    lines = await said_at_the_start(loaded(tmp_path, nameserver_enabled=False).settings)
    assert lines[-1] == "ready in 0.78 s"


@pytest.mark.parametrize(
    "name", ["config/consumerOffset.json", "config/topics.json", "namesrv/kvConfig.json"]
)
async def test_a_start_serves_without_a_damaged_table_and_names_it(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "store" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"cut')
    daemon = Daemon(loaded(tmp_path).settings)
    await daemon.start()
    try:
        (note,) = [one for one in daemon.health.run() if one.reason is not None]
        assert daemon.health.ready
    finally:
        await daemon.stop()
    aside = path.with_name(f"{path.name}.damaged")
    assert note.reason == f"damaged tables were kept aside: {aside}"
    assert aside.read_bytes() == b'{"cut'
    assert not (tmp_path / "store" / "abort").exists(), "stopped in order"


async def test_a_store_that_broke_is_not_a_stop_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(loaded(tmp_path).settings)
    await daemon.start()
    daemon.store._health.poison("a sync", OSError(5, "Input/output error"))
    with pytest.raises(ExceptionGroup) as failed:
        await daemon.stop()
    (error,) = failed.value.exceptions
    assert "will be recovered at the next start: a sync failed" in str(error)
    (line,) = [one for one in caplog.records if one.msg.startswith("stop failed")]
    assert line.exc_info is None, "the fault is known, a traceback says nothing more"
    assert "a sync failed" in line.getMessage()
    assert (tmp_path / "store" / "abort").exists()


@pytest.mark.parametrize(
    ("sent", "supervised", "drained", "code"),
    [
        ((signal.SIGTERM, signal.SIGTERM), False, "skipped", 0),
        ((signal.SIGINT,), False, "not begun", 0),
        ((signal.SIGTERM,), True, "not begun", 0),
    ],
)
def test_the_first_sigterm_drains_and_the_second_skips_that(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent: tuple[signal.Signals, ...],
    supervised: bool,
    drained: str,
    code: int,
) -> None:
    seen = ["not begun"]
    rest = list(sent)

    async def let_producers_go(_self: Daemon) -> None:
        seen.append("begun")
        try:
            os.kill(os.getpid(), rest.pop())
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("skipped")
            raise

    def ready(*_: object) -> None:
        os.kill(os.getpid(), rest.pop())

    monkeypatch.setattr(Daemon, "let_producers_go", let_producers_go)
    monkeypatch.setattr(broker_process, "_say_ready", ready)
    monkeypatch.setattr(broker_process, "heed_supervisor", lambda *_: None)
    read = lambda _: loaded(tmp_path)  # noqa: E731
    assert broker_process.run(loaded(tmp_path), read, supervised=supervised) == code
    assert seen[-1] == drained
    assert not (tmp_path / "store" / "abort").exists(), "stopped in order"


def test_a_drain_that_fails_lets_the_stop_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def let_producers_go(_self: Daemon) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Daemon, "let_producers_go", let_producers_go)
    monkeypatch.setattr(
        broker_process, "_say_ready", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
    )
    assert broker_process.run(loaded(tmp_path), lambda _: loaded(tmp_path)) == 0
    assert "the drain has failed" in caplog.text


async def test_a_drain_is_told_to_systemd(tmp_path: Path) -> None:
    messages: list[str] = []

    class Heard(Notifier):
        def _send(self, *lines: str, patient: bool = True) -> None:
            messages.extend(lines)

    daemon = Daemon(loaded(tmp_path).settings, Heard({}))
    daemon._report_drain("draining for 3 s")
    assert messages == ["STOPPING=1", "STATUS=draining for 3 s", "EXTEND_TIMEOUT_USEC=15000000"]
