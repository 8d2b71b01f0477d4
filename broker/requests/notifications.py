"""NOTIFY_CONSUMER_IDS_CHANGED: the members of a group are told that it changed (WIRE.md 3.8).

Each change of a group goes to all its members, the newest state being what they ask for then. So
changes that come while members are being told are folded: a group is told at most once more behind
the round that is under way, whatever the number of changes. A small group is told at once, before
the answer that the change gets; of a large one a slice, and the others in the next turns.

Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.broker.tables.clients import ClientTable
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.headers.client import ConsumerListHeader
from aerobee.remoting.connection import Connection
from aerobee.remoting.turns import Spread, Turns


class Notifications:
    """Tells the members of changed groups, a slice a turn."""

    def __init__(self, clients: ClientTable, turns: Turns) -> None:
        self._clients = clients
        # Groups to be told, in the order of their first change.
        self._changed: dict[str, None] = {}
        self._round: Iterator[Connection] | None = None
        self._work = Spread(turns, self._step)
        # Notifications sent, and changes that found their group waiting to be told anyway.
        self.sent = 0
        self.folded = 0

    def group_changed(self, name: str) -> None:
        """Tell the members of that group, those there are when its turn comes."""
        if name in self._changed:
            self.folded += 1
            return
        self._changed[name] = None
        self._work.go_on()

    def _step(self) -> bool:
        """Tell one member; False when nobody is left to be told."""
        while self._round is not None or self._changed:
            if self._round is None:
                name = next(iter(self._changed))
                del self._changed[name]
                self._round = self._tell(name)
            if next(self._round, None) is not None:
                return True
            self._round = None
        return False

    def _tell(self, name: str) -> Iterator[Connection]:
        """Tells one member after the other."""
        group = self._clients.consumer_group(name)
        members = list(group.members.values()) if group is not None else []
        header = ConsumerListHeader(name).to_ext()
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        frame = make_request(code, header, oneway=True).encode()
        for member in members:
            member.connection.write(frame)
            self.sent += 1
            yield member.connection
