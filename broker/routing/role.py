"""The role of this broker: master or slave. One value, which may change while the broker runs.

A master takes messages and keeps them; a slave follows its master and takes none
(protocol/WIRE.md 10). Parts that behave otherwise on a slave ask this value each time, or forget
what they derived from it when `changes` moves; none keeps a copy of the setting `broker_role`.
Parts that work on a master only are started and stopped by `background/leading.py`.

Loop thread only.
"""

from aerobee.config.model import Settings

MASTER_ID = 0


def promised_slaves(settings: Settings, role: "Role") -> int:
    """The number of slaves that an answer of success waits for."""
    promises = settings.waits_for_slaves and not role.is_slave
    return settings.in_sync_replicas - 1 if promises else 0


class Role:
    """Whether this broker is a slave, and the number of times that this has changed."""

    __slots__ = ("changes", "is_slave")

    def __init__(self, settings: Settings) -> None:
        self.is_slave = settings.starts_as_slave
        #: Moves with each change of the role.
        self.changes = 0

    @property
    def name(self) -> str:
        """For people and for metrics."""
        return "slave" if self.is_slave else "master"

    def become(self, *, slave: bool) -> None:
        """Take a role. `cluster/role_change.py` calls this."""
        if slave != self.is_slave:
            self.is_slave = slave
            self.changes += 1
