"""The value that all parts share which append, around a store of a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.broker_address import Advertised, Identity
from aerobee.broker.routing.role import Role
from aerobee.config.model import Settings
from aerobee.store.message_store import MessageStore


class _Reput:
    def __init__(self, appended: Callable[[], None]) -> None:
        self.appended = appended


def appending(
    store: MessageStore,
    settings: object,
    *,
    stats: BrokerStats,
    clock_ms: Callable[[], int],
    appended: Callable[[], None],
    role: Role | None = None,
) -> Appending:
    """`appended` is called after each append; without a `role` the broker is a master. The store
    host is `HOST` of the store's tests."""
    return Appending(
        cast("Any", settings),
        Identity(Advertised("192.0.2.1", "192.0.2.1", ()), 10911),
        store,
        stats,
        cast("Any", _Reput(appended)),
        clock_ms,
        role or Role(Settings.for_tests()),
    )
