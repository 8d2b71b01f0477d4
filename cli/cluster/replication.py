"""`aerobee broker ha`: masters and slaves by broker name, and how far each slave is.

RocketMQ 5 and ours tell of their replication (907); of RocketMQ 4.9 only the ends of logs are
known. Each broker is asked at a time of its own, masters first, so a lag that only these ends tell
is one of a log that goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from aerobee.cli.cluster.command_session import admin_of, client_command, exit_code, say_unanswered
from aerobee.cli.documents.brokers import HaDescription, HaRow
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import CANNOT_CONNECT, CommandFailed, print_table, say
from aerobee.client.admin import Admin, BrokerHa
from aerobee.client.errors import ClientError, NetworkError
from aerobee.protocol.bodies.ha_status import HaStatus, SlaveStatus
from aerobee.protocol.bodies.routes import MASTER_ID, BrokerRoute
from aerobee.remoting.peers import naming

_AT_ONCE: Final = 256
# Its slaves are asked when a master has answered, or after this time.
_MASTER_FIRST_S: Final = 0.5
# The refusal of a slave that has all of its master's log, and more.
_AHEAD: Final = "ahead"
_COLUMNS: Final = ("broker", "id", "role", "address", "end", "acknowledged", "lag", "state")


class _Row(NamedTuple):
    """One broker of a name; None where nobody told."""

    broker: str
    id: int | None  # None: it is connected to the master, and no name server knows it
    role: str
    address: str
    end: int | None
    acknowledged: int | None
    lag: int | None
    state: str
    #: Why slaves are refused, or why this slave does not follow, or what it lacks at its beginning.
    reason: str | None = None

    @property
    def shown(self) -> tuple[object, ...]:
        """The columns of the table."""
        return self[: len(_COLUMNS)]


class _Asked(NamedTuple):
    """The answer of a broker, or why it did not come."""

    broker_id: int
    address: str
    found: BrokerHa | None
    error: ClientError | None

    @property
    def trouble(self) -> str:
        """The state of a broker that has not told anything."""
        is_silent = self.error is None or exit_code(self.error) == CANNOT_CONNECT
        return "does not answer" if is_silent else "answers with an error"

    @property
    def problem(self) -> str | None:
        """Why this slave does not follow, as it says itself; None where it follows or does not
        tell."""
        status = None if self.found is None else self.found.status
        master = None if status is None else status.master
        return None if master is None else master.problem or None

    @property
    def refusal(self) -> str:
        """The kind of reason for which this slave refuses its master; "" where it does not."""
        status = None if self.found is None else self.found.status
        return "" if status is None or status.master is None else status.master.refusal

    @property
    def does_not_follow(self) -> bool:
        """Whether this slave says that it follows nobody."""
        status = None if self.found is None else self.found.status
        return status is not None and status.master is not None and not status.master.is_connected

    @property
    def is_master(self) -> bool:
        status = None if self.found is None else self.found.status
        return self.broker_id == MASTER_ID if status is None else status.is_master


@client_command
async def show_ha(parsed: argparse.Namespace) -> int:
    """Print masters and slaves."""
    async with admin_of(parsed, leaves_out_silent=True) as admin:
        known = (await admin.cluster()).brokers
        if parsed.broker is not None and parsed.broker not in known:
            there = ", ".join(sorted(known)) or "none"
            raise CommandFailed(f"there is no broker {parsed.broker}: there is {there}")
        names = sorted(known) if parsed.broker is None else [parsed.broker]
        turns = asyncio.Semaphore(_AT_ONCE)
        answers = await asyncio.gather(*(_ask(admin, known[name], turns) for name in names))
        _print(parsed, names, answers)
        code = await say_unanswered(admin)
    for one in (one for asked in answers for one in asked):
        if one.error is not None and not isinstance(one.error, NetworkError):
            say(naming(one.address, str(one.error)))
            code = max(code, exit_code(one.error))
    return code


def _print(
    parsed: argparse.Namespace, names: Sequence[str], answers: Sequence[list[_Asked]]
) -> None:
    rows = [row for name, asked in zip(names, answers, strict=True) for row in _rows(name, asked)]
    if parsed.json:
        document = HaDescription(brokers=[HaRow(**row._asdict()) for row in rows])
        print_document(document, compact=parsed.watch is not None)
        return
    print_table(_COLUMNS, [row.shown for row in rows])
    for row in rows:
        if row.reason is not None:
            say(f"{row.role} {row.address} of {row.broker}: {row.reason}")


async def _ask(admin: Admin, route: BrokerRoute, turns: asyncio.Semaphore) -> list[_Asked]:
    """Ask the brokers of one name, the master first. A master that has not answered for a moment
    keeps the others waiting no longer."""
    has_begun = asyncio.Event()

    async def ask(broker_id: int, address: str, *, first: bool) -> _Asked:
        if not first:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(has_begun.wait(), _MASTER_FIRST_S)
        async with turns:
            try:
                return _Asked(broker_id, address, await admin.ha_state(address), None)
            except ClientError as error:
                return _Asked(broker_id, address, None, error)
            finally:
                if first:
                    has_begun.set()

    ordered = sorted(route.addresses.items())
    calls = (ask(*one, first=number == 0) for number, one in enumerate(ordered))
    return list(await asyncio.gather(*calls))


def _rows(name: str, asked: list[_Asked]) -> list[_Row]:
    master = next((one for one in asked if one.is_master), None)
    slaves = [one for one in asked if one is not master]
    status = None if master is None or master.found is None else master.found.status
    connected = None if status is None else list(status.slaves)
    rows = [] if master is None else [_of_master(name, master, status)]
    matched = _matched([one for one in slaves if not one.does_not_follow], connected or ())
    end = None if master is None or master.found is None else master.found.end
    refused = [] if status is None else [one.host for one in status.refused]
    for slave in slaves:
        row = _of_slave(name, slave, matched.get(slave.address), end, connected)
        if slave.does_not_follow and not slave.refusal and _host(slave.address) in refused:
            row = row._replace(state="refused by its master")
        lacking = _lacks_old(slave, master)
        told = [text for text in (row.reason, lacking) if text is not None]
        rows.append(row._replace(reason="; ".join(told) or None))
    taken = [one.address for one in matched.values()]
    for one in connected or ():
        # A connection whose slave cannot be told is shown as it is.
        if one.address not in taken:
            rows.append(_of_connection(name, one))
    return rows


def _of_master(name: str, master: _Asked, status: HaStatus | None) -> _Row:
    end = None if master.found is None else master.found.end
    reason = None
    if master.found is None:
        state = master.trouble
    elif status is None:
        state = "does not tell of its slaves"
    else:
        state = _copies(status)
        reason = "; ".join(f"slave {one.host} was refused: {one.reason}" for one in status.refused)
    row = _Row(name, master.broker_id, "master", master.address, end, None, None, state)
    return row._replace(reason=reason or None)


def _copies(status: HaStatus) -> str:
    """How many slaves a master has, how many copies they are, and how many answers wait for."""
    there = _copies_there(status)
    if not status.promised:
        return there
    missing = status.promised - status.copies
    lacks = f": {missing} missing, so sends get SLAVE_NOT_AVAILABLE" if missing > 0 else ""
    return f"{there}; answers wait for {status.promised}{lacks}"


def _copies_there(status: HaStatus) -> str:
    """How many slaves a master has, and how many copies they are together."""
    if not status.slaves:
        return "no slaves"
    near = sum(one.in_sync for one in status.slaves)
    text = f"{near} of {len(status.slaves)} slaves near enough"
    if status.copies == near:
        return text
    copies = "1 copy" if status.copies == 1 else f"{status.copies} copies"
    alike = len({_host(one.address) for one in status.slaves}) < len(status.slaves)
    return f"{text}, together {copies}" + (": those of one address count once" if alike else "")


def _of_slave(
    name: str,
    slave: _Asked,
    seen: SlaveStatus | None,
    master_end: int | None,
    connected: list[SlaveStatus] | None,
) -> _Row:
    end = None if slave.found is None else slave.found.end
    lag = None if end is None or master_end is None else max(0, master_end - end)
    if seen is not None:
        lag, state = seen.behind, _state(seen)
    elif slave.found is None:
        state = slave.trouble
    elif slave.refusal:
        state = "does not follow"
    elif slave.does_not_follow or (connected is not None and not connected):
        state = "not connected to its master"
    elif slave.found.status is None or slave.found.status.master is None:
        state = "does not tell"
    else:
        state = "follows"
    if end is not None and master_end is not None and slave.does_not_follow:
        # Ends of logs that differ say nothing of each other.
        if slave.refusal or end > master_end:
            lag = None
        if slave.refusal == _AHEAD and end > master_end:
            state = f"{state}, {end - master_end} bytes ahead of its master"
    acknowledged = None if seen is None else seen.acknowledged
    row = _Row(name, slave.broker_id, "slave", slave.address, end, acknowledged, lag, state)
    return row._replace(reason=slave.problem)


def _lacks_old(slave: _Asked, master: _Asked | None) -> str | None:
    """Says how much of the beginning of its master's log a slave lacks; None without that."""
    if slave.found is None or master is None or master.found is None:
        return None
    own, of_master = slave.found.begins, master.found.begins
    if own <= of_master:
        return None
    return (
        f"its log begins at {own}, its master's at {of_master}: it has deleted, or was never "
        f"given, the oldest {own - of_master} bytes"
    )


def _of_connection(name: str, seen: SlaveStatus) -> _Row:
    state = f"{_state(seen)}, by its connection"
    return _Row(name, None, "slave", seen.address, None, seen.acknowledged, seen.behind, state)


def _state(seen: SlaveStatus) -> str:
    """How a master sees a slave."""
    if seen.behind == 0:
        return "level"
    if seen.acknowledged == 0:
        return "connected, has reported nothing"
    return "near enough" if seen.in_sync else "too far behind to count as a copy"


def _matched(slaves: Iterable[_Asked], connected: Iterable[SlaveStatus]) -> dict[str, SlaveStatus]:
    """The connections of slaves, by the addresses for clients of these: those of the same host, if
    it has one of each; and what is left over, if that is one of each. Several slaves of one host
    cannot be told apart."""
    found: dict[str, SlaveStatus] = {}
    left, free = list(slaves), list(connected)
    for host in {_host(one.address) for one in left}:
        mine = [one for one in left if _host(one.address) == host]
        its = [one for one in free if _host(one.address) == host]
        if len(mine) == len(its) == 1:
            found[mine[0].address] = its[0]
    left = [one for one in left if one.address not in found]
    free = [one for one in free if one not in found.values()]
    if len(left) == len(free) == 1:
        found[left[0].address] = free[0]
    return found


def _host(address: str) -> str:
    """The host of an address that a peer has written, RocketMQ's with a slash in front or not."""
    return address.rpartition(":")[0].strip("/[]")
