"""The questions of a slave to its master, before it follows it.

A master of ours answers LOG_RANGES (31020). RocketMQ's answers it with code 3, and is asked by its
own requests instead: 28 for the ends of its log, 26 for its names and sizes, 33 for single records.
907 lists the connections to its port for slaves.

`MasterRequests` says what the comparison needs (`comparing.py`); `RemoteMaster` asks over a
connection. Loop thread only.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aerobee.protocol.bodies.common import parse_kv_table
from aerobee.protocol.bodies.ha_status import HaStatus
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, make_request
from aerobee.protocol.headers.client import ViewMessageHeader
from aerobee.protocol.headers.log_ranges import LogRangesHeader, LogRangesResponse, decode_sums
from aerobee.remoting.calling.caller import Caller
from aerobee.remoting.errors import RemotingError
from aerobee.remoting.peers import address_text, plain_address

if TYPE_CHECKING:
    from aerobee.access.files.credentials import Credentials

_REMARK_SHOWN = 300
# RocketMQ's access control answers with code 1 and the name of its exception.
_ACL_MARK = "AclException"


class MasterUnreachable(Exception):
    """The master gave no answer that can be used; the slave asks again later."""


class MasterRefuses(Exception):
    """The master's access control does not take this slave's requests."""


class MasterLog(NamedTuple):
    """The state of a master: who it is, and where its log begins and ends."""

    cluster_name: str
    broker_name: str
    broker_role: str
    broker_id: int
    segment_bytes: int
    min_offset: int
    max_offset: int


class RangeSums(NamedTuple):
    """An answer of a master of ours: its state, and the CRC-32 of each part of [start, end)."""

    log: MasterLog
    start: int
    end: int
    sums: tuple[int, ...]


class MasterRequests(Protocol):
    """A master, by what it answers. All methods raise MasterUnreachable and MasterRefuses."""

    @property
    def address(self) -> str:
        """The master's `host:port`, as `remoting.peers.address_text` writes it."""

    async def range_sums(self, start: int, end: int, parts: int) -> RangeSums | None:
        """Checksums of a range's parts (`parts_of`); None from a broker that is not ours."""

    async def log_state(self) -> MasterLog:
        """The state, by the requests that every RocketMQ knows."""

    async def record_at(self, log_offset: int) -> bytes | None:
        """The record that begins at `log_offset`; None if the master has no record there."""


class RemoteMaster:
    """A master at the other end of a connection."""

    def __init__(self, caller: Caller, timeout_s: float, credentials: Credentials | None) -> None:
        """The connection stays the caller's. With `credentials` requests are signed."""
        self._caller = caller
        self._timeout_s = timeout_s
        self._credentials = credentials

    @property
    def address(self) -> str:
        return address_text(self._caller.peer)

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port of the master."""
        return self._caller.peer

    async def range_sums(self, start: int, end: int, parts: int) -> RangeSums | None:
        header = LogRangesHeader(start, end, parts)
        answer = await self._ask(RequestCode.LOG_RANGES, header.to_ext())
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        self._check(answer, RequestCode.LOG_RANGES)
        try:
            found = LogRangesResponse.from_ext(answer.ext)
            sums = decode_sums(answer.body)
        except (BadRequest, ValueError) as error:
            raise self._unreadable(RequestCode.LOG_RANGES, error) from error
        log = MasterLog(
            found.cluster_name,
            found.broker_name,
            found.broker_role,
            found.broker_id,
            found.segment_bytes,
            found.min_offset,
            found.max_offset,
        )
        return RangeSums(log, found.start, found.end, sums)

    async def log_state(self) -> MasterLog:
        code = RequestCode.GET_BROKER_CONFIG
        config = _properties(self._check(await self._ask(code), code).body)
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        answer = self._check(await self._ask(code), code)
        try:
            runtime = parse_kv_table(answer.body)
            return MasterLog(
                config["brokerClusterName"],
                config["brokerName"],
                config["brokerRole"],
                int(config["brokerId"]),
                int(config["mappedFileSizeCommitLog"]),
                # -1 from a RocketMQ whose log has no file.
                max(0, int(runtime["commitLogMinOffset"])),
                max(0, int(runtime["commitLogMaxOffset"])),
            )
        except (BadRequest, ValueError, KeyError) as error:
            raise self._unreadable(code, error) from error

    async def has_connection(self, own: tuple[str, int]) -> bool | None:
        """Whether the connection that comes from `own` is one to this master's port for slaves;
        None from RocketMQ 4.9, which does not tell. Raises as all requests do."""
        code = RequestCode.GET_BROKER_HA_STATUS
        answer = await self._ask(code)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        try:
            status = HaStatus.parse(self._check(answer, code).body)
        except BadRequest as error:
            raise self._unreadable(code, error) from error
        there = *(one.address for one in status.slaves), *status.silent
        return _socket_address(own) in {_socket_address(split_peer(one)) for one in there}

    async def record_at(self, log_offset: int) -> bytes | None:
        code = RequestCode.VIEW_MESSAGE_BY_ID
        answer = await self._ask(code, ViewMessageHeader(log_offset).to_ext())
        if answer.code == ResponseCode.SYSTEM_ERROR and not _is_refusal(answer):
            return None
        return self._check(answer, code).body

    async def _ask(self, code: RequestCode, ext: dict[str, str] | None = None) -> Command:
        request = make_request(code, ext)
        if self._credentials is not None:
            request = self._credentials.sign(request)
        try:
            return await self._caller.call(request, self._timeout_s)
        except (RemotingError, OSError) as error:
            raise MasterUnreachable(
                f"the master at {self.address} does not answer request {int(code)}: {error}"
            ) from error

    def _check(self, answer: Command, code: RequestCode) -> Command:
        """The answer, if it is one of success."""
        if answer.code == ResponseCode.SUCCESS:
            return answer
        remark = (answer.remark or "no reason given")[:_REMARK_SHOWN]
        text = f"the master at {self.address} refuses request {int(code)}"
        if _is_refusal(answer):
            raise MasterRefuses(f"{text}: {remark}")
        raise MasterUnreachable(f"{text} with code {answer.code}: {remark}")

    def _unreadable(self, code: RequestCode, error: Exception) -> MasterUnreachable:
        return MasterUnreachable(
            f"the answer of the master at {self.address} to request {int(code)} cannot be read: "
            f"{error if str(error) else repr(error)}"[:_REMARK_SHOWN]
        )


def split_peer(text: str) -> tuple[str, int]:
    """Host and port of a peer as a master has written it: RocketMQ's with a slash in front."""
    host, _, port = text.lstrip("/").rpartition(":")
    return host.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0


def _socket_address(address: tuple[str, int]) -> tuple[str, int]:
    """One form for each address: both ends write IPv6 in their own ways."""
    host, port = plain_address(address)
    try:
        return str(ip_address(host)), port
    except ValueError:
        return host, port


def _is_refusal(answer: Command) -> bool:
    """Whether access control has refused a request."""
    return answer.code == ResponseCode.NO_PERMISSION or _ACL_MARK in (answer.remark or "")


def _properties(body: bytes) -> dict[str, str]:
    """The lines `key=value` of a configuration."""
    lines = body.decode(errors="replace").splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
