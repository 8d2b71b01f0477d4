"""Parts that work on a master only start and stop with the role, once each time."""

from __future__ import annotations

from aerobee.broker.background.leading import Leading
from aerobee.broker.routing.role import Role
from aerobee.config.model import Settings


class Part:
    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def lead(self, *, anew: bool) -> None:
        self.calls.append(f"{self.name} leads{' anew' if anew else ''}")

    def follow(self) -> None:
        self.calls.append(f"{self.name} follows")


def made(broker_role: str) -> tuple[Role, Leading, list[str]]:
    calls: list[str] = []
    role = Role(Settings.for_tests(broker_role=broker_role))
    return role, Leading(role, [Part("a", calls), Part("b", calls)]), calls


def test_a_role_counts_its_changes() -> None:
    role = Role(Settings.for_tests(broker_role="SYNC_MASTER"))
    assert (role.name, role.changes) == ("master", 0)
    role.become(slave=False)
    assert role.changes == 0
    role.become(slave=True)
    role.become(slave=True)
    assert (role.name, role.is_slave, role.changes) == ("slave", True, 1)


def test_parts_of_a_master_have_read_the_log_when_they_were_built() -> None:
    _, leading, calls = made("ASYNC_MASTER")
    leading.follow_role()
    leading.follow_role()
    assert (calls, leading.works) == (["a leads", "b leads"], True)


def test_parts_of_a_slave_stand_still_and_read_the_log_when_it_becomes_a_master() -> None:
    role, leading, calls = made("SLAVE")
    leading.follow_role()
    assert (calls, leading.works) == ([], False)
    role.become(slave=False)
    leading.follow_role()
    assert calls == ["a leads anew", "b leads anew"]


def test_a_master_that_becomes_a_slave_stops_its_parts_in_reverse_and_once() -> None:
    role, leading, calls = made("ASYNC_MASTER")
    leading.follow_role()
    calls.clear()
    role.become(slave=True)
    leading.follow_role()
    leading.follow_role()
    assert (calls, leading.works) == (["b follows", "a follows"], False)
    role.become(slave=False)
    leading.follow_role()
    assert calls[2:] == ["a leads anew", "b leads anew"]


def test_a_master_that_becomes_a_slave_before_its_parts_work_has_them_forget_the_log() -> None:
    role, leading, calls = made("ASYNC_MASTER")
    role.become(slave=True)
    leading.follow_role()
    assert calls == ["b follows", "a follows"]
