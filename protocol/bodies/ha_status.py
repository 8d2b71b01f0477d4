"""The answer to GET_BROKER_HA_STATUS (907) of RocketMQ 5: a master's slaves, or a slave's master
(protocol/WIRE.md 4.13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aerobee.protocol.bodies.common import (
    as_object,
    int_member,
    list_member,
    object_member,
    parse_body,
    text_member,
)
from aerobee.protocol.frames.fastjson import dumps

# The most slaves that a reader takes of one master.
_MOST_SLAVES: Final = 1000
_I64_MAX: Final = 2**63 - 1


def _number(members: Mapping[str, Any], name: str) -> int:
    return int_member(members, name, 0, _I64_MAX)


class SlaveStatus(msgspec.Struct, frozen=True):
    """One slave, as its master sees it: the log up to `acknowledged` is there, `behind` bytes are
    not. `sent_from` is the next offset to be sent."""

    address: str
    acknowledged: int
    behind: int
    in_sync: bool
    bytes_a_second: int
    sent_from: int

    def _members(self) -> dict[str, Any]:
        return {
            "addr": self.address,
            "diff": self.behind,
            "inSync": self.in_sync,
            "slaveAckOffset": self.acknowledged,
            "transferFromWhere": self.sent_from,
            "transferredByteInSecond": self.bytes_a_second,
        }

    @classmethod
    def _parse(cls, value: Any) -> SlaveStatus:
        members = as_object(value, "slave")
        return cls(
            text_member(members, "addr"),
            _number(members, "slaveAckOffset"),
            _number(members, "diff"),
            members.get("inSync") is True,
            _number(members, "transferredByteInSecond"),
            _number(members, "transferFromWhere"),
        )


class RefusedSlave(msgspec.Struct, frozen=True):
    """A slave that its master has not served of late, and why. Masters of ours alone tell."""

    host: str
    reason: str

    def _members(self) -> dict[str, Any]:
        return {"addr": self.host, "reason": self.reason}

    @classmethod
    def _parse(cls, value: Any) -> RefusedSlave:
        members = as_object(value, "refused slave")
        return cls(text_member(members, "addr"), text_member(members, "reason"))


class MasterStatus(msgspec.Struct, frozen=True):
    """A slave's connection to its master: `address` of its port for slaves, empty without one; the
    end of the slave's log; the times of the epoch, in milliseconds, 0 when nothing was said. Ours
    do not know how much their master has synced (`synced`), and say 0. `problem` is why ours do not
    follow, empty while they do; `refusal` names the kind of what only a person can change, and is
    empty where the slave is merely not connected."""

    address: str
    is_connected: bool
    end: int
    heard_ms: int
    told_ms: int
    bytes_a_second: int
    synced: int = 0
    problem: str = ""
    refusal: str = ""

    def _members(self) -> dict[str, Any]:
        return {
            "activated": self.is_connected,
            "lastReadTimestamp": self.heard_ms,
            "lastWriteTimestamp": self.told_ms,
            "masterAddr": self.address,
            "masterFlushOffset": self.synced,
            "maxOffset": self.end,
            "transferredByteInSecond": self.bytes_a_second,
            **({"problem": self.problem} if self.problem else {}),
            **({"refusal": self.refusal} if self.refusal else {}),
        }

    @classmethod
    def _parse(cls, members: dict[str, Any]) -> MasterStatus:
        return cls(
            text_member(members, "masterAddr", ""),
            members.get("activated") is True,
            _number(members, "maxOffset"),
            _number(members, "lastReadTimestamp"),
            _number(members, "lastWriteTimestamp"),
            _number(members, "transferredByteInSecond"),
            _number(members, "masterFlushOffset"),
            text_member(members, "problem", ""),
            text_member(members, "refusal", ""),
        )


class HaStatus(msgspec.Struct, frozen=True):
    """A master says where its log ends and has slaves; a slave has a master. `copies` is how many
    copies the slaves that are near enough are together: ours count those of one address once.
    `silent` are the connections at ours that have sent nothing yet, so that nobody knows whether
    they speak TLS: a slave that compares before it asks is one of them. `promised` is the number
    of slaves that an answer of success waits for at ours, 0 for none."""

    end: int = 0
    slaves: tuple[SlaveStatus, ...] = ()
    master: MasterStatus | None = None
    copies: int = 0
    refused: tuple[RefusedSlave, ...] = ()
    silent: tuple[str, ...] = ()
    promised: int = 0

    @property
    def is_master(self) -> bool:
        return self.master is None

    def encode(self) -> bytes:
        """The body of the answer."""
        master = MasterStatus("", False, 0, 0, 0, 0) if self.master is None else self.master
        refused = [one._members() for one in self.refused]
        return dumps(
            {
                "haClientRuntimeInfo": master._members(),
                "haConnectionInfo": [one._members() for one in self.slaves],
                "inSyncSlaveNums": self.copies,
                "master": self.is_master,
                "masterCommitLogMaxOffset": self.end,
                **({"refusedSlaves": refused} if refused else {}),
                **({"silentConnections": list(self.silent)} if self.silent else {}),
                **({"promisedSlaves": self.promised} if self.promised else {}),
            }
        )

    @classmethod
    def parse(cls, body: bytes) -> HaStatus:
        """BadRequest (code 1) for a body that is no such answer."""
        members = parse_body(body, "state of replication")
        slaves = list_member(members, "haConnectionInfo", _MOST_SLAVES)
        refused = list_member(members, "refusedSlaves", _MOST_SLAVES)
        silent = list_member(members, "silentConnections", _MOST_SLAVES)
        return cls(
            _number(members, "masterCommitLogMaxOffset"),
            tuple(SlaveStatus._parse(one) for one in slaves),
            None
            if members.get("master") is True
            else MasterStatus._parse(object_member(members, "haClientRuntimeInfo")),
            _number(members, "inSyncSlaveNums"),
            tuple(RefusedSlave._parse(one) for one in refused),
            tuple(one for one in silent if isinstance(one, str)),
            _number(members, "promisedSlaves"),
        )
