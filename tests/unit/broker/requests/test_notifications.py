"""Telling the members of a group that it changed: in slices, and folded."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from aerobee.broker.requests.notifications import Notifications
from aerobee.broker.tables.clients import Heartbeat
from aerobee.protocol.bodies.clients import HeartbeatData
from aerobee.remoting.turns import Turns
from tests.unit.broker.clients_support import Peer, Tables, heartbeat_body
from tests.unit.remoting.conftest import StepClock, eventually

MEMBERS = 300


async def test_toggles_of_a_large_group_are_folded_and_spread(tmp_path: Path) -> None:
    clients = Tables(tmp_path).clients
    peers = [Peer(number) for number in range(1, MEMBERS + 1)]
    for number, peer in enumerate(peers):
        data = HeartbeatData.parse(heartbeat_body(f"c{number}", {"g": {"T": "*"}}))
        clients.heartbeat(Heartbeat(peer.connection, "JAVA", 397, data))
    notifications = Notifications(clients, Turns(StepClock()))
    told: list[int] = []

    def look() -> None:
        told.append(notifications.sent)
        if notifications.sent < 2 * MEMBERS:
            asyncio.get_running_loop().call_soon(look)

    for _ in range(64):
        notifications.group_changed("g")
    look()
    await eventually(lambda: notifications.sent == 2 * MEMBERS)
    await asyncio.sleep(0)
    # The round under way when the other changes came, and one behind it, which has the newest.
    assert notifications.sent == 2 * MEMBERS
    assert notifications.folded == 62
    assert all(peer.notified() == ["g", "g"] for peer in peers)
    assert max(later - before for before, later in itertools.pairwise([0, *told])) <= 22
