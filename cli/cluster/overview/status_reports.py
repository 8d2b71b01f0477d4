"""Makes the document of a broker of what it tells of itself, for `aerobee status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aerobee.cli.cluster.topics import rights_text
from aerobee.cli.documents.brokers import (
    BrokerReport,
    FailedCheck,
    Limit,
    NameServerState,
    Refusals,
)
from aerobee.client.administration.overview import NameServerView, Place, Told
from aerobee.client.errors import code_name
from aerobee.protocol.bodies.broker_status import BrokerStatus, RefusedKind
from aerobee.protocol.codes import request_name

_MASTER_ID: Final = 0


def report_of(told: Told, views: Sequence[NameServerView]) -> BrokerReport:
    """The document of a broker; `views` are those of the name servers."""
    known = _of_ours(told.status) if told.status is not None else _of_others(told)
    place = told.place
    nothing: dict[str, Any] = dict.fromkeys(_NUMBERS)
    lists: dict[str, Any] = {"failing": [], "refusals": [], "refusals_left_out": 0, "limits": []}
    return BrokerReport(
        broker=place.name,
        broker_id=place.broker_id,
        cluster=place.cluster,
        address=place.address,
        error=None if told.error is None else str(told.error),
        tells_no_more=told.why_not or None,
        name_servers=_name_servers(place, told.status, views),
        **{**nothing, **lists, **known},
    )


_NUMBERS: Final = (
    *("role", "version", "started_timestamp_ms", "rights", "ready"),
    *("messages_in_per_s", "messages_out_per_s", "received_bytes_per_s", "sent_bytes_per_s"),
    *("connections", "disk_used_ratio", "disk_refused_above_ratio", "disk_room_bytes"),
    *("disk_growth_bytes_per_s", "disk_full_in_s"),
)


def _of_ours(status: BrokerStatus) -> dict[str, Any]:
    rates, disk = status.rates, status.disk
    return {
        "role": status.role,
        "version": f"aerobee {status.version}",
        "started_timestamp_ms": status.started_ms,
        "rights": rights_text(status.permission) or "-",
        "ready": status.ready,
        "failing": [
            FailedCheck(
                check=check.name,
                since_timestamp_ms=check.since_ms,
                note=check.note,
                reason=check.reason,
                remedy=check.remedy,
            )
            for check in status.checks
            if check.reason is not None
        ],
        "messages_in_per_s": rates.messages_in,
        "messages_out_per_s": rates.messages_out,
        "received_bytes_per_s": rates.received_bytes,
        "sent_bytes_per_s": rates.sent_bytes,
        "connections": sum(status.connections.values()),
        "disk_used_ratio": disk.used_ratio,
        "disk_refused_above_ratio": disk.refused_above_ratio,
        "disk_room_bytes": disk.room_bytes,
        "disk_growth_bytes_per_s": disk.growth_bytes_per_s,
        "disk_full_in_s": disk.full_in_s,
        "refusals": [_refusals(kind) for kind in status.refusals],
        "refusals_left_out": status.refusals_left_out,
        "limits": [
            Limit(limit=one.name, value=one.value, bound=one.bound) for one in status.limits
        ],
    }


def _refusals(kind: RefusedKind) -> Refusals:
    return Refusals(
        cause=kind.cause,
        # Several kinds that are counted together have no common code.
        answer=code_name(kind.response_code) if kind.response_code else "-",
        request=request_name(kind.request_code) if kind.request_code else None,
        peer=kind.peer or None,
        times=kind.count,
        last_timestamp_ms=kind.last_ms,
    )


def _of_others(told: Told) -> dict[str, Any]:
    """The part that the runtime table of RocketMQ's brokers has, and their settings."""
    runtime, settings = told.runtime or {}, told.settings or {}
    role = None
    if told.error is None:
        role = "master" if told.place.broker_id == _MASTER_ID else "slave"
    permission = settings.get("brokerPermission", "")
    return {
        "role": role,
        "version": runtime.get("brokerVersionDesc"),
        "started_timestamp_ms": _whole(runtime, "bootTimestamp"),
        "rights": (rights_text(int(permission)) or "-") if permission.isdecimal() else None,
        "messages_in_per_s": _of_minute(runtime, "putTps"),
        "messages_out_per_s": _of_minute(runtime, "getTransferedTps"),
        "disk_used_ratio": _number(runtime.get("commitLogDiskRatio", "")),
    }


def _of_minute(runtime: Mapping[str, str], key: str) -> float | None:
    """The rate of the last minute; in the first minute that of ten seconds. The text has the rates
    of ten seconds, a minute and ten minutes, separated by blanks. A rate is empty while the broker
    is younger than its span."""
    ten_seconds, _, rest = runtime.get(key, "").partition(" ")
    return _number(rest.partition(" ")[0] or ten_seconds)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 else None


def _whole(runtime: Mapping[str, str], key: str) -> int | None:
    value = runtime.get(key, "")
    return int(value) if value.isdecimal() and len(value) < 20 else None


def _name_servers(
    place: Place, status: BrokerStatus | None, views: Sequence[NameServerView]
) -> list[NameServerState]:
    """Each name server that was asked, and those that the broker itself names."""
    own = {} if status is None else {one.address: one for one in status.name_servers}
    found = []
    for view in views:
        link = own.pop(view.address, None)
        registered = place in view.places
        if view.error is not None:
            registered_or_not = None if link is None else link.registered
        else:
            registered_or_not = registered
        found.append(
            NameServerState(
                name_server=view.address,
                registered=registered_or_not,
                reason=None if link is None or registered else link.error,
            )
        )
    found += [
        NameServerState(name_server=link.address, registered=link.registered, reason=link.error)
        for link in own.values()
    ]
    return found
