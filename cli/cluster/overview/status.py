"""`aerobee status`: each broker with what is wrong, how much it does, and what will be full soon.

Brokers of ours tell all of it (31030). Of RocketMQ's the runtime table, the settings and the name
servers tell a part; the rest is null, and a line says so. No request is made for each topic, so it
is as quick with many topics as with few.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Final

from aerobee.cli.cluster.command_session import admin_of, client_command, exit_code, say_unanswered
from aerobee.cli.cluster.overview.brokers_named import check_some_answer, silent_peers, unknown_name
from aerobee.cli.cluster.overview.status_reports import report_of
from aerobee.cli.documents.brokers import BrokerReport, Status
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import OK, CommandFailed, print_table, say, show
from aerobee.cli.printing.times import long_span_text, time_text
from aerobee.client.administration.overview import Told, ask_all, ask_status
from aerobee.client.errors import NetworkError
from aerobee.remoting.peers import naming

# A limit that is used to this part is shown; metrics warn at 0.9.
_NEAR: Final = 0.7
_REFUSALS_SHOWN: Final = 10
_UNKNOWN: Final = "?"
_COLUMNS: Final = (
    *("broker", "id", "role", "version", "address", "rights", "ready", "in/s", "out/s"),
    *("connections", "disk", "full in"),
)


@client_command
async def show_status(parsed: argparse.Namespace) -> int:
    """Print the brokers; the exit code says whether all of them and all name servers answered."""
    async with admin_of(parsed, leaves_out_silent=True) as admin:
        ports = await admin.admin_ports()
        views, told = await ask_all(admin, partial(ask_status, admin, ports=ports))
        check_some_answer(views)
        reports = [report_of(one, views) for one in told]
        if parsed.broker is not None:
            reports = [one for one in reports if one.broker == parsed.broker]
            if not reports:
                raise unknown_name("broker", parsed.broker, (one.place.name for one in told))
        if not reports:
            raise CommandFailed("no broker is registered")
        document = Status(brokers=reports, unanswered=await silent_peers(admin))
        if parsed.json:
            print_document(document, compact=parsed.watch is not None)
        else:
            _print(reports)
        return max(_say_errors(told), await say_unanswered(admin))


def _say_errors(told: Sequence[Told]) -> int:
    """Say which brokers answered with an error; the exit code that follows."""
    errors = [
        (one.place.address, one.error)
        for one in told
        if one.error is not None and not isinstance(one.error, NetworkError)
    ]
    for address, error in errors:
        say(naming(address, str(error)))
    return max((exit_code(error) for _, error in errors), default=OK)


def _print(reports: Sequence[BrokerReport]) -> None:
    print_table(_COLUMNS, [_row(one) for one in reports])
    _print_failing(reports)
    _print_servers(reports)
    _print_refusals(reports)
    _print_limits(reports)
    for one in reports:
        if one.tells_no_more is not None:
            say(f"{one.broker} at {one.address}: the rest is not known, {one.tells_no_more}")


def _row(one: BrokerReport) -> tuple[object, ...]:
    return (
        one.broker,
        one.broker_id,
        _known(one.role),
        _known(one.version),
        one.address,
        _known(one.rights),
        _UNKNOWN if one.ready is None else one.ready,
        _rate(one.messages_in_per_s),
        _rate(one.messages_out_per_s),
        _known(one.connections),
        _UNKNOWN if one.disk_used_ratio is None else f"{one.disk_used_ratio:.0%}",
        _full_in(one),
    )


def _full_in(one: BrokerReport) -> str:
    if one.disk_full_in_s is not None:
        return long_span_text(one.disk_full_in_s)
    growth = one.disk_growth_bytes_per_s
    return _UNKNOWN if growth is None else "-"


def _known(value: object) -> object:
    return _UNKNOWN if value is None else value


def _rate(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1f}"


def _print_failing(reports: Sequence[BrokerReport]) -> None:
    failing = [(one, check) for one in reports for check in one.failing]
    if not failing:
        return
    show("")
    print_table(
        ("broker", "id", "fails", "since", "reason"),
        [
            (
                one.broker,
                one.broker_id,
                f"{check.check} (note)" if check.note else check.check,
                time_text(check.since_timestamp_ms),
                check.reason,
            )
            for one, check in failing
        ],
    )
    for check_name, remedy in sorted({(check.check, check.remedy) for _, check in failing}):
        say(f"{check_name}: {remedy}")


def _print_servers(reports: Sequence[BrokerReport]) -> None:
    rows = [
        (one.broker, one.broker_id, server.name_server, server.reason or "it does not know it")
        for one in reports
        for server in one.name_servers
        if server.registered is False
    ]
    if rows:
        show("")
        print_table(("broker", "id", "not registered at", "reason"), rows)


def _print_refusals(reports: Sequence[BrokerReport]) -> None:
    found = [(one.broker, kind) for one in reports for kind in one.refusals]
    if not found:
        return
    show("", "refusals of the last hour:")
    found.sort(key=lambda item: -item[1].times)
    print_table(
        ("broker", "times", "last", "answer", "request", "peer", "cause"),
        [
            (
                broker,
                kind.times,
                time_text(kind.last_timestamp_ms),
                kind.answer,
                kind.request or "",
                kind.peer or "",
                kind.cause,
            )
            for broker, kind in found[:_REFUSALS_SHOWN]
        ],
    )
    left_out = sum(kind.times for _, kind in found[_REFUSALS_SHOWN:])
    if left_out := left_out + sum(one.refusals_left_out for one in reports):
        say(f"{left_out} more refusals of other kinds are not shown; --json has more of them")


def _print_limits(reports: Sequence[BrokerReport]) -> None:
    rows = [
        (one.broker, limit.limit, f"{limit.value:.0f}", f"{limit.bound:.0f}", f"{share:.0%}")
        for one in reports
        for limit in one.limits
        if (share := limit.value / limit.bound if limit.bound else 0.0) >= _NEAR
    ]
    if rows:
        show("")
        print_table(("broker", "limit that is near", "value", "bound", "used"), rows)
