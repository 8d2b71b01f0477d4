"""Answers to GET_CONSUMER_LIST_BY_GROUP: the client ids of a group, encoded once a change.

All members of a group ask when they are told that it changed. To encode the ids of 2,000 members
for each of 2,000 is four million of them; so what was encoded for one is given to the others, as
long as nobody comes or goes. The lists of small groups are made each time.

Loop thread only. Bounded: `KEPT_BYTES`, those that were made last.
"""

from __future__ import annotations

from collections.abc import Generator

from aerobee.broker.tables.clients import ConsumerGroup
from aerobee.protocol.bodies.clients import encode_consumer_list

#: All lists that are kept.
KEPT_BYTES = 4 * 1024 * 1024

# A list of fewer members is made as quickly as it is found.
_LARGE = 32


class MemberLists:
    """The lists of large groups, as they were when they were asked for last."""

    def __init__(self) -> None:
        # By name, the last made last: of which group, at which of its changes, and the body.
        self._kept: dict[str, tuple[ConsumerGroup, int, bytes]] = {}
        self._bytes = 0
        #: How often a list was encoded.
        self.encoded = 0

    def of(self, group: ConsumerGroup) -> Generator[None, None, bytes]:
        """The body of the answer about a group that has members, in steps."""
        known = self._kept.get(group.name)
        if known is not None and known[0] is group and known[1] == group.id_changes:
            return known[2]
        changes = group.id_changes
        body = yield from encode_consumer_list(group.client_ids())
        self.encoded += 1
        if len(group.ids) > _LARGE and changes == group.id_changes:
            self._keep(group, body)
        return body

    def _keep(self, group: ConsumerGroup, body: bytes) -> None:
        self._forget(group.name)
        if len(body) > KEPT_BYTES:
            return
        while self._bytes + len(body) > KEPT_BYTES:
            self._forget(next(iter(self._kept)))
        self._kept[group.name] = (group, group.id_changes, body)
        self._bytes += len(body)

    def _forget(self, name: str) -> None:
        known = self._kept.pop(name, None)
        if known is not None:
            self._bytes -= len(known[2])
