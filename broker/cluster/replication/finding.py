"""Finds the master of a slave, compares both logs, and says where the slave goes on there.

The name servers, or haMasterAddress, say where the master is. The comparison asks it over its port
for clients, on a connection of its own that is closed afterwards: it is made anew each time the
slave connects, which is seldom. The log has to come from the master that was compared with
(`comparison/log_route.py`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from aerobee.broker.cluster.comparison.comparing import Asked, Refused, compare, itself, no_access
from aerobee.broker.cluster.comparison.log_route import LogConnection, other_pair
from aerobee.broker.cluster.comparison.master_requests import (
    MasterRefuses,
    MasterUnreachable,
    RemoteMaster,
)
from aerobee.broker.cluster.registration.master_address import (
    MasterAddress,
    is_own_address,
    split_address,
)
from aerobee.broker.cluster.registration.registration import what_others_may_miss
from aerobee.config.model import Settings
from aerobee.remoting.calling.caller import Caller, caller_set
from aerobee.remoting.errors import RemotingClosed, RemotingError
from aerobee.store.message_store import MessageStore

if TYPE_CHECKING:
    from aerobee.access.files.credentials import Credentials

_CONNECT_S = 3.0
_ANSWER_S = 5.0
# Between two questions to the name servers while no master can be followed. Each is a registration
# with all topics.
_ASK_AGAIN_S = 3.0


class MasterFinder:
    """Asked by a `MasterLink` each time it connects."""

    def __init__(
        self,
        settings: Settings,
        master: MasterAddress,
        store: MessageStore,
        own: tuple[str, ...],
        ask_name_servers: Callable[[], None],
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`own` are this broker's addresses as others get them. `ask_name_servers` has them say
        soon where the master is. `tls` encrypts the connection, `credentials` sign the requests."""
        self._settings = settings
        self._master = master
        self._store = store
        self._own = own
        self._ask_name_servers = ask_name_servers
        self._asked_at = time.monotonic()
        self._tls = tls
        self._credentials = credentials
        self._shared = caller_set(name="comparison")

    @property
    def unknown_because(self) -> str:
        """Why `address` is None, for people."""
        return self._master.unknown_because

    def address(self) -> tuple[str, int] | Refused | None:
        """The master's HA port; None while no master is known."""
        remoting, ha = self._master.remoting, self._master.ha
        if remoting is None or ha is None:
            return None
        if is_own_address(remoting, self._own, self._settings.listen_host):
            return itself(remoting)
        return split_address(ha)

    def look_again(self) -> None:
        """No master can be followed now: ask the name servers where it is, now and then, because a
        slave that has lost its master is a copy that is missing."""
        now = time.monotonic()
        if now - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = now
            self._ask_name_servers()

    async def compare(self, connection: LogConnection) -> Asked | Refused:
        """The log offset to ask the master for over `connection`. Raises MasterUnreachable."""
        host, port = split_address(self._master.remoting or "")
        try:
            caller = await Caller.connect(
                host, port, _CONNECT_S, shared=self._shared, tls=self._tls
            )
        except RemotingError as error:
            raise MasterUnreachable(str(error)) from error
        try:
            master = RemoteMaster(caller, _ANSWER_S, self._credentials)
            found = await compare(master, self._store, self._settings, frozenset(self._own))
            if isinstance(found, Asked):
                return await other_pair(master, connection, self._master) or found
            return found
        except MasterRefuses as error:
            return no_access(error)
        except MasterUnreachable as error:
            if not isinstance(error.__cause__, RemotingClosed):
                raise
            # A port that takes only TLS cannot say so to a plain connection.
            hint = what_others_may_miss(self._settings, self._tls)
            raise MasterUnreachable(f"{error} ({hint})") from error
        finally:
            caller.close()
