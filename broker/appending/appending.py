"""The parts of one broker that belong together wherever messages are appended.

`core.py` makes the value once. A part takes from it what it uses when it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aerobee.broker.appending.reput_service import ReputService
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.cluster.registration.broker_address import Identity
from aerobee.broker.routing.role import Role
from aerobee.config.model import Settings
from aerobee.store.message_store import MessageStore


class Appending(NamedTuple):
    """The needs of a part that appends messages."""

    settings: Settings
    #: Its store host stands in each record.
    identity: Identity
    store: MessageStore
    stats: BrokerStats
    #: Its `appended` is to be called after each append.
    reput: ReputService
    clock_ms: Callable[[], int]
    #: A slave appends nothing of its own.
    role: Role
