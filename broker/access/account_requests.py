"""Requests of administrators about accounts: codes 50 to 53 (protocol/WIRE.md 3.7).

A change is answered when it is in the file and in force. No answer holds a secret, or a path of the
machine: files are named as they lie below RocketMQ's home, and by those names alone a request can
choose one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from aerobee.access.accounts import LONGER_THAN
from aerobee.access.errors import AccountFileError
from aerobee.broker.routing.router import Handler
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode, ResponseCode, request_name
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.signature import ACCESS_KEY
from aerobee.protocol.headers.fields import missing_field, parse_bool
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.peers import address_text
from aerobee.remoting.turns import Steps

if TYPE_CHECKING:
    # These import the library for YAML, which a broker without accounts does not need.
    from aerobee.access.account_service import AccessService
    from aerobee.access.files.account_change import AccountChange
    from aerobee.access.files.account_file import AccountFile
    from aerobee.access.files.account_files import Loaded

log = logging.getLogger("aerobee.access")

_OFF: Final = "this broker has no accounts: aclEnable is false"
_DEFAULTS: Final = ("defaultTopicPerm", "defaultGroupPerm")
_LISTS: Final = ("topicPerms", "groupPerms")


class AccessRequests:
    """Serves administrators. Loop thread only."""

    def __init__(
        self,
        settings: Settings,
        endpoint: str,
        service: AccessService | None,
        clock_ms: Callable[[], int],
    ) -> None:
        """`endpoint` is the broker's advertised address; without a service each is refused."""
        self._clock_ms = clock_ms
        self._settings = settings
        self._endpoint = endpoint
        self._service = service

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.put,
            RequestCode.DELETE_ACL_CONFIG: self.delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.versions,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.set_white,
        }

    def put(self, connection: Connection, command: Command) -> Steps:
        """Make an account or change it."""
        code = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        service = self._on(code)
        given = _account_of(command.ext, code)
        key = given["accessKey"]
        known = service.loaded.rules.accounts.get(key)
        if known is None and given["secretKey"] is None:
            raise BadRequest(code, f"account {key} is new, so it needs a secretKey")
        path = service.files.default if known is None else Path(known.path)

        def change(found: Loaded) -> None:
            if not given["admin"]:
                _check_not_last(found, key, code)
            self._change_of(path).put(given)

        yield from _changed(service, path, change, code)
        return _told(connection, command)

    def delete(self, connection: Connection, command: Command) -> Steps:
        """Take an account away."""
        code = ResponseCode.DELETE_ACL_CONFIG_FAILED
        service = self._on(code)
        key = _field(command.ext, "accessKey")
        known = service.loaded.rules.accounts.get(key)
        if known is None:
            raise BadRequest(code, f"there is no account {key}")
        path = Path(known.path)

        def change(found: Loaded) -> None:
            _check_not_last(found, key, code)
            self._change_of(path).delete(key)

        yield from _changed(service, path, change, code)
        return _told(connection, command)

    def set_white(self, connection: Connection, command: Command) -> Steps:
        """Replace the addresses of one file that nothing is asked of."""
        code = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        service = self._on(code)
        text = command.ext.get("globalWhiteAddrs")
        if text is None:
            raise missing_field("globalWhiteAddrs")
        addresses = _listed(text)
        path = service.files.path_of(command.ext.get("aclFileFullPath", ""))
        if path is None:
            raise BadRequest(code, "that is none of this broker's files of accounts")

        def change(found: Loaded) -> None:
            if not addresses:
                _check_somebody_is_left(found, path, code)
            self._change_of(path).set_white(addresses)

        yield from _changed(service, path, change, code)
        return _told(connection, command)

    def versions(self, _connection: Connection, command: Command) -> bytes:
        """The data version of each file; the default one's beside."""
        service = self._on(ResponseCode.SYSTEM_ERROR)
        files = service.loaded.files
        default = str(service.files.default)
        first = next((one for one in files if one.path == default), files[0])
        all_versions = {service.files.name_of(one.path): _version(one) for one in files}
        fields = {
            "version": msgspec.json.encode(_version(first)).decode(),
            "allAclFileVersion": msgspec.json.encode(all_versions).decode(),
            "brokerName": self._settings.broker_name,
            "brokerAddr": self._endpoint,
            "clusterName": self._settings.cluster_name,
        }
        return encode_success(command, ext=fields)

    def _change_of(self, path: Path) -> AccountChange:
        from aerobee.access.files.account_change import AccountChange

        return AccountChange(path, self._clock_ms)

    def _on(self, code: int) -> AccessService:
        if self._service is None:
            raise BadRequest(code, _OFF)
        return self._service


# The losses of a change are looked at just before it, on the thread that makes one after the
# other: of two administrators who are deleted at once one stays.


def _check_not_last(found: Loaded, access_key: str, code: int) -> None:
    """Raises BadRequest when without this administrator nobody could change accounts.

    White addresses do not count: nobody knows if there is somebody at one of them."""
    administrators = {key for key, one in found.rules.accounts.items() if one.admin}
    if administrators == {access_key}:
        raise BadRequest(code, f"{access_key} is the last administrator: nobody could make another")


def _check_somebody_is_left(found: Loaded, path: Path, code: int) -> None:
    """Raises BadRequest when the white addresses of a file are all by which accounts can be
    changed."""
    others = any(one.white for one in found.files if one.path != str(path))
    if not others and not any(one.admin for one in found.rules.accounts.values()):
        raise BadRequest(code, "without white addresses and administrators nobody could make any")


def _changed(
    service: AccessService, path: Path, change: Callable[[Loaded], None], code: int
) -> Steps:
    """Waits for a change. Raises BadRequest with `code` when it cannot be made."""
    future = service.change(path, change)
    yield future
    try:
        future.result()
    except AccountFileError as error:
        raise BadRequest(
            code, f"nothing was changed: {_without_home(service, str(error))}"
        ) from None
    except OSError as error:
        raise BadRequest(code, f"the file cannot be written: {error.strerror}") from error
    return None


def _told(connection: Connection, command: Command) -> bytes:
    """The answer to a change that is in force; the log says whose it was."""
    log.info(
        "accounts changed by a request request=%s account=%r peer=%s",
        request_name(command.code),
        command.ext.get(ACCESS_KEY, ""),
        address_text(connection.peer),
        extra={"each": True},
    )
    return encode_success(command)


def _without_home(service: AccessService, text: str) -> str:
    for path in service.files.paths():
        text = text.replace(str(path), service.files.name_of(str(path)))
    return text


def _account_of(ext: Mapping[str, str], code: int) -> dict[str, Any]:
    """The members of an account that a request gives; None for those that it leaves alone."""
    given: dict[str, Any] = {"accessKey": _field(ext, "accessKey")}
    given["secretKey"] = ext.get("secretKey") or None
    for name in ("accessKey", "secretKey"):
        if given[name] is not None and len(given[name]) <= LONGER_THAN:
            raise BadRequest(code, f"{name} must have more than {LONGER_THAN} characters")
    given["whiteRemoteAddress"] = ext.get("whiteRemoteAddress")
    # Empty as not given: the reference leaves them as they are then.
    given |= {name: ext.get(name) or None for name in _DEFAULTS}
    given["admin"] = parse_bool(ext.get("admin", ""))
    given |= {name: _listed(ext[name]) if name in ext else None for name in _LISTS}
    return given


def _field(ext: Mapping[str, str], name: str) -> str:
    text = ext.get(name)
    if not text:
        raise missing_field(name)
    return text


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _version(file: AccountFile) -> dict[str, int]:
    return {"counter": file.counter, "timestamp": file.timestamp}
