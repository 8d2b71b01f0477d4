"""NOTIFY_CONSUMER_IDS_CHANGED: the members of a group are told that it changed (WIRE.md 3.8).

Each change of a group goes to all its members, the newest state being what they ask for then. So
changes that come while members are being told are folded: a group is told at most once more behind
the round that is under way, whatever the number of changes. A small group is told at once, before
the answer that the change gets; of a large one a slice, and the others in the next turns.

A large group rests between two rounds, the longer the larger it is: when a service of thousands
starts again, each of them joins, and each that is told asks for the list of all. What changes
meanwhile is told in one round behind the rest, which `look` begins.

Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.broker.tables.clients import ClientTable
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.headers.client import ConsumerListHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Spread, Turns

# Members whose group is told of each change at once; of more a round costs a rest of so long for
# each, so that telling takes some hundredth of the time, and those who are told can ask.
_AT_ONCE = 64
_REST_S_EACH = 0.0005


class Notifications:
    """Tells the members of changed groups, a slice a turn."""

    def __init__(self, clients: ClientTable, turns: Turns) -> None:
        self._clients = clients
        self._clock = turns.clock
        # Groups that were told just now, and until when they rest; those that changed meanwhile.
        self._resting: dict[str, float] = {}
        self._later: dict[str, None] = {}
        # Groups to be told, in the order of their first change.
        self._changed: dict[str, None] = {}
        self._round: Iterator[Connection] | None = None
        self._work = Spread(turns, self._step)
        # Notifications sent, and changes that found their group waiting to be told anyway.
        self.sent = 0
        self.folded = 0

    def group_changed(self, name: str) -> None:
        """Tell the members of that group, those there are when its turn comes."""
        if name in self._changed or name in self._later:
            self.folded += 1
        elif name in self._resting:
            self._later[name] = None
        else:
            self._changed[name] = None
            self._work.go_on()

    def look(self) -> None:
        """Groups that have rested may be told again. Called by a timer, some times a second."""
        now = self._clock()
        for name in [name for name, until in self._resting.items() if until <= now]:
            del self._resting[name]
            if name in self._later:
                del self._later[name]
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
        if len(members) > _AT_ONCE:
            self._resting[name] = self._clock() + _REST_S_EACH * len(members)
        header = ConsumerListHeader(name).to_ext()
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        frame = make_request(code, header, oneway=True).encode()
        for member in members:
            member.connection.write(frame)
            self.sent += 1
            yield member.connection
