"""The parts that work on a master only, and their start and stop with the role.

Delays, timer, publishing of staged batches and checks of transactions store messages by themselves.
On a slave these messages come from the master, so the parts stand still there: they hold nothing of
the log in memory, and their progress is what the master's tables say (`replace` of each part). A
slave that becomes a master has each part read log and tables anew, and go on from there.

Loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from aerobee.broker.routing.role import Role

log = logging.getLogger("aerobee.broker.routing.role")


class Led(Protocol):
    """A part that works on a master only. It is built for the role that the broker starts with: on
    a master it has read log and tables then, and stands still until `lead`."""

    def lead(self, *, anew: bool) -> None:
        """Begin to work. `anew`: a master wrote log and tables since the part read them, which it
        does first."""

    def follow(self) -> None:
        """Stand still, and hold nothing that the log has: a master writes it from now on."""


class Leading:
    """Starts and stops the parts. All calls may come twice."""

    def __init__(self, role: Role, parts: Sequence[Led]) -> None:
        """`parts` are started in this order, and stopped in reverse."""
        self._role = role
        self._parts = tuple(parts)
        # Whether the parts work, and whether a master has written the log since they read it.
        self._works = False
        self._is_behind = role.is_slave

    @property
    def works(self) -> bool:
        """Whether the parts work."""
        return self._works

    def follow_role(self) -> None:
        """Start or stop the parts as the role says."""
        if self._role.is_slave:
            self.stop()
        else:
            self.start()

    def start(self) -> None:
        """Have the parts work. The role is a master's by now."""
        assert not self._role.is_slave
        if self._works:
            return
        anew, self._is_behind = self._is_behind, False
        self._works = True
        for part in self._parts:
            part.lead(anew=anew)

    def stop(self) -> None:
        """Have the parts stand still. The role is a slave's by now."""
        assert self._role.is_slave
        if self._works or not self._is_behind:
            self._works, self._is_behind = False, True
            for part in reversed(self._parts):
                part.follow()
