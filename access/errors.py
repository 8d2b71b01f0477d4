"""Errors of the files of accounts, and of requests that are refused."""

from __future__ import annotations

from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest

#: Clients and their users look for this name, with which every refusal of the reference begins.
JAVA_NAME = "org.apache.rocketmq.acl.common.AclException"


class AccessDenied(BadRequest):
    """A request that its sender may not make; `reason` is one of `REASONS`, for counting."""

    def __init__(self, reason: str, remark: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{JAVA_NAME}: {remark}")
        self.reason = reason


#: Why requests are refused: no access key, an access key that no file has, a signature that does
#: not fit, a request for administrators, a missing right on a topic or group.
NO_KEY, UNKNOWN_KEY, SIGNATURE, ADMIN, RIGHT = REASONS = (
    "no access key",
    "unknown access key",
    "wrong signature",
    "not an administrator",
    "no right",
)


class AccountFileError(Exception):
    """A file of accounts that cannot be taken, and each of its `faults`; they name file and line,
    and no secret. Its text is the first one, and how many there are besides."""

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.faults = faults

    def __str__(self) -> str:
        first, *others = self.faults
        return f"{first} (and {len(others)} more)" if others else first
