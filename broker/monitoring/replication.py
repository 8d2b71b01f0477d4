"""Replication on /metrics and /ready: the slaves of this broker, and its master.

All families are on each broker's page, with series where there is something to show. Labels name
slaves by their addresses, at most as many as the port takes (`cluster/replication/ha_port.py`).

A slave's lag is told by its master, which knows the end of the log. The slave knows what has come:
the stream does not say how much there is (protocol/WIRE.md 10). So it tells when it last heard its
master, and the bytes that have come and are not written yet.

In readiness all of it are notes: a broker without its slaves, or a slave without its master, goes
on serving. A slave whose own store takes no writes is not ready, by the check of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from aerobee.broker.monitoring.health_checks import HealthChecks, Probe
from aerobee.broker.monitoring.metrics import Row, under
from aerobee.broker.routing.role import Role, promised_slaves
from aerobee.config.model import Settings

# Most brokers never load these.
if TYPE_CHECKING:
    from aerobee.broker.cluster.replication.ha_port import HaPort
    from aerobee.broker.cluster.replication.master_link import MasterLink
    from aerobee.broker.cluster.replication.replication import Replication

_ROLES = ("master", "slave")


def replication(settings: Settings, role: Role, parts: Replication | None) -> Iterator[Row]:
    """The role, the slaves and the master; `parts` is None where the port for slaves is closed."""
    yield Row("aerobee_role", {one: int(one == role.name) for one in _ROLES},
              "1 for the role that this broker has", "role")  # fmt: skip
    yield from _slaves(settings, role, None if parts is None else parts.port)
    yield from _master(
        None if parts is None else parts.link,
        None if parts is None or parts.tables is None else parts.tables.master_first,
    )


def _slaves(settings: Settings, role: Role, port: HaPort | None) -> Iterator[Row]:
    figures = [] if port is None else port.figures()
    yield from (
        Row("aerobee_slaves", None if port is None else len(figures), "Slaves that are connected"),
        Row("aerobee_slaves_near", None if port is None else port.near,
            "Slaves that are near enough to count as copies"),
        Row("aerobee_slaves_promised", None if port is None else promised_slaves(settings, role),
            "Slaves that an answer of success waits for"),
        Row("aerobee_slaves_lag_limit_bytes",
            None if port is None else settings.ha_slave_behind_max_bytes,
            "Lag from which on a slave does not count as a copy"),
        Row("aerobee_slaves_sent_bytes_total", None if port is None else port.sent_bytes,
            "Bytes of the log sent to slaves"),
        Row("aerobee_slave_refusals_total", {} if port is None else port.all_refusals(),
            "Slaves that were not served, by why", "reason"),
        Row("aerobee_slave_lag_bytes", {one.address: one.behind for one in figures},
            "Bytes of the log that the slave has not reported", "slave"),
        Row("aerobee_slave_lag_seconds", {one.address: one.age_s for one in figures},
            "For how long the log has had the first byte that the slave has not reported",
            "slave"),
        Row("aerobee_slave_sent_bytes_total",
            {one.address: one.connection.sent_bytes for one in figures},
            "Bytes of the log sent to the slave since it connected", "slave"),
    )  # fmt: skip
    states = {
        one.address: {state.value: int(state is one.connection.state)
                      for state in type(one.connection.state)}
        for one in figures
    }  # fmt: skip
    # Without a slave the family is there, and has no series.
    for address, values in (states or {"": {}}).items():
        row = Row("aerobee_slave_state", values,
                  "1 for what is being done for the slave", "state")  # fmt: skip
        yield from under([row], slave=address)


def _master(link: MasterLink | None, first: int | None) -> tuple[Row, ...]:
    steps = {} if link is None else {step.value: int(step is link.step) for step in type(link.step)}
    return (
        Row("aerobee_master_link_state", steps, "1 for what the slave is about", "state"),
        Row("aerobee_master_refusals_total", {} if link is None else link.all_refusals(),
            "Times the slave has refused to follow its master, by why", "reason"),
        Row("aerobee_master_connections_total", None if link is None else link.connections,
            "Connections to a master whose log was taken"),
        Row("aerobee_master_received_bytes_total", None if link is None else link.received,
            "Bytes received from masters"),
        Row("aerobee_master_unwritten_bytes", None if link is None else link.unwritten_bytes,
            "Bytes received from the master and not yet written, as their record is not whole"),
        Row("aerobee_master_heard_ago_seconds", None if link is None else link.heard_ago_s,
            "Time since a master was heard last"),
        Row("aerobee_master_gaps_total", None if link is None else link.gaps,
            "Damaged places of the master's log that were passed over"),
        Row("aerobee_master_oldest_bytes", first,
            "Log offset where the master's log begins, as the slave heard last"),
    )  # fmt: skip


# --- readiness ------------------------------------------------------------------------------------


def note_replication(
    health: HealthChecks,
    settings: Settings,
    role: Role,
    parts: Replication,
    first: Callable[[], int],
) -> None:
    """Add the notes of a broker that has a port for slaves. Each is shown only while the broker has
    the role that it is about. `first` says where this broker's log begins."""
    health.note(
        "slaves are served",
        parts.port.problem,
        "do for each slave what its reason says; docs/operations.md explains each refusal. The "
        "note goes when none was refused for a minute",
        applies=lambda: not role.is_slave,
    )
    health.note(
        "copies are there",
        copies_probe(settings, role, parts.port),
        "start the slave that is missing, or let it catch up: its /ready says what it lacks. "
        "To go on with fewer copies set inSyncReplicas or brokerRole, and restart",
        applies=lambda: promised_slaves(settings, role) > 0,
    )
    health.note(
        "follows its master",
        lambda: None if parts.link is None else parts.link.problem,
        "the reason says what differs or who does not answer; docs/operations.md explains each",
        applies=lambda: role.is_slave,
    )
    health.note(
        "has its master's old messages",
        old_messages_probe(
            first, lambda: None if parts.tables is None else parts.tables.master_first
        ),
        "if the reason is a full disk, give this slave's disk room. What is deleted does not come "
        "back by itself: to have it, empty this slave's store, and it copies all; "
        "docs/operations.md, 'Old messages, and full disks'",
        applies=lambda: role.is_slave,
    )


def old_messages_probe(first: Callable[[], int], master_first: Callable[[], int | None]) -> Probe:
    """Checks that the log of this slave, which begins at `first`, begins where its master's does,
    as far as the master has told. Each deletes by its own disk and its own settings."""

    def probe() -> str | None:
        own, of_master = first(), master_first()
        if of_master is None or own <= of_master:
            return None
        return (
            f"this slave's log begins at {own}, its master's at {of_master}: the oldest "
            f"{own - of_master} bytes of the master's messages are not here. This slave has "
            "deleted them, by its own disk or settings, or it was not given them at its start"
        )

    return probe


def copies_probe(settings: Settings, role: Role, port: HaPort) -> Probe:
    """Checks that as many slaves are near enough as an answer of success waits for."""

    def probe() -> str | None:
        promised, near = promised_slaves(settings, role), port.near
        if near >= promised:
            return None
        return (
            f"{near} of the {promised} slaves are near enough that an answer of this SYNC_MASTER "
            "promises: sends are stored here, and answered with SLAVE_NOT_AVAILABLE"
            f"{_of_one_address(port)}"
        )

    return probe


def _of_one_address(port: HaPort) -> str:
    """Why there are fewer copies than connections; empty where each has an address of its own."""
    connected, addresses = len(port.slaves), len({slave.peer[0] for slave in port.slaves})
    if connected == addresses:
        return ""
    noun = "address" if addresses == 1 else "addresses"
    return (
        f". {connected} connections come from {addresses} {noun}, and those of one address count "
        "as one copy"
    )
