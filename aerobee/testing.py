"""A real broker inside a test process: up in a fraction of a second, gone without a trace.

    def test_orders_arrive():
        with aerobee.testing.broker() as running:
            with Producer(running.name_server) as producer: ...

or the pytest fixture `aerobee_broker`: `pytest_plugins = ["aerobee.testing"]` in the topmost
conftest.py, or `from aerobee.testing import aerobee_broker` in any. It is the whole daemon with its
name server, on free ports of the loopback address and a temporary store of small segments, on an
event loop in a thread of its own, so that blocking tests and asyncio ones use it alike. Leaving the
block stops it in order and deletes the store; in a child by fork() leaving it does nothing.

Keyword arguments are settings (`aerobee config show` lists them); ranges are not checked, so a test
may be quicker than an operator should be. A `store_path` given is kept: start a second broker on it
to see what a restart does.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee.broker.lifecycle.daemon import Daemon
from aerobee.client.loop_thread import new_loop
from aerobee.config.model import Settings
from aerobee.remoting.origin import Origin

# Starting takes a tenth of a second; a machine under load gets time instead of a false alarm.
_START_TIMEOUT_S = 60.0

SMALL: dict[str, Any] = {
    "broker_name": "test-broker",
    "listen_host": "127.0.0.1",
    "listen_port": 0,
    "nameserver_port": 0,
    "http_enabled": False,
    "commit_log_segment_bytes": 16 * 1024 * 1024,
    "consume_queue_segment_bytes": 60_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
    # A developer's disk is often nearly full: no reason to delete or to refuse what a test sends.
    "disk_max_used_percent": 95,
    "disk_force_ratio": 1.0,
    "disk_warning_ratio": 1.0,
    # Broker and test take turns in one interpreter, on a machine that may be busy with others: a
    # send that has waited for its turn is stored, not refused with SYSTEM_BUSY.
    "send_queue_wait_ms": 10_000,
}


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """Addresses (`host:port`, "" for a part that is off) and the store of a running broker."""

    name_server: str
    broker: str
    vip: str
    http: str
    store_path: Path
    settings: Settings


@contextmanager
def broker(**settings: Any) -> Iterator[RunningBroker]:
    """Run a broker for the length of a `with` block; raises whatever keeps it from starting."""
    own_store = None
    if "store_path" not in settings:
        own_store = tempfile.mkdtemp(prefix="aerobee-test-")
        settings["store_path"] = own_store
    thread = _DaemonThread(Settings.for_tests(**{**SMALL, **settings}))
    origin = Origin()
    try:
        yield thread.start()
    finally:
        # A child by fork() has neither the thread nor a right to the store.
        if not origin.is_elsewhere:
            try:
                thread.stop()
            finally:
                if own_store is not None:
                    shutil.rmtree(own_store)


class _DaemonThread:
    """A daemon with its loop and thread; failures of either end come out of `start` and `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started: Future[RunningBroker] = Future()
        self._ended: Future[None] = Future()
        self._ask_to_stop: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._main, name="aerobee-broker", daemon=True)

    def start(self) -> RunningBroker:
        self._thread.start()
        return self._started.result(_START_TIMEOUT_S)

    def stop(self) -> None:
        if self._thread.ident is None:
            return
        self._ask_to_stop()
        self._thread.join()
        if self._started.exception() is None:
            self._ended.result()

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001  handed to the thread that waits
            if not self._started.done():
                self._started.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        daemon = Daemon(self._settings)
        await daemon.start()
        try:

            def ask_to_stop() -> None:
                loop.call_soon_threadsafe(stop.set)

            self._ask_to_stop = ask_to_stop
            addresses = daemon.addresses
            self._started.set_result(
                RunningBroker(
                    name_server=addresses.name_server or addresses.name_servers[0],
                    broker=addresses.broker,
                    vip=addresses.vip,
                    http=addresses.http,
                    store_path=Path(self._settings.store_path),
                    settings=self._settings,
                )
            )
            await stop.wait()
        finally:
            await daemon.stop()


try:
    import pytest
except ImportError:  # a program may use this module without pytest
    pass
else:

    @pytest.fixture
    def aerobee_broker() -> Iterator[RunningBroker]:
        """A broker of the test's own."""
        with broker() as running:
            yield running
