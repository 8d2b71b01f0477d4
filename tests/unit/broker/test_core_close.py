"""The end of a broker's core: each table is written, whichever cannot be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee.broker.appending.store_events import StoreEvents
from aerobee.broker.background.scheduler import Saver
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.broker_address import Advertised, Identity
from aerobee.broker.core import BrokerCore
from aerobee.config.model import Settings
from aerobee.store.message_store import MessageStore


async def test_a_table_that_cannot_be_written_at_the_end_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first that failed skipped those behind it: deleted topics and staged batches."""
    settings = Settings.for_tests(store_path=str(tmp_path / "store"))
    loop = asyncio.get_running_loop()
    events = StoreEvents(loop)
    store = MessageStore.open(settings, listener=events)
    identity = Identity(Advertised("127.0.0.1", "127.0.0.1", ()), 10911)
    core = BrokerCore(
        settings=settings,
        store=store,
        events=events,
        identity=identity,
        stats=BrokerStats(),
        loop=loop,
    )
    tried: list[str] = []

    async def full(saver: Saver[object]) -> None:
        tried.append(saver._what)
        raise OSError(28, f"no room for {saver._what}")

    monkeypatch.setattr(Saver, "close", full)
    with pytest.raises(OSError, match="no room for delay progress"):
        await core.close()
    assert tried == [
        "delay progress",
        "timer progress",
        "filters",
        "deleted topics",
        "staged batches",
        "consumer offsets",
    ]
    assert "no room for staged batches" in caplog.text
    assert store.close()
