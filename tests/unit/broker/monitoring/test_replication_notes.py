"""The notes of masters and slaves in readiness."""

from __future__ import annotations

from aerobee.broker.monitoring.replication import old_messages_probe


def test_a_slave_whose_log_begins_later_than_its_masters_says_by_how_much() -> None:
    own, of_master = 0, 0
    probe = old_messages_probe(lambda: own, lambda: of_master)
    assert probe() is None
    own = 3 << 20
    said = probe()
    assert isinstance(said, str)
    assert f"begins at {own}, its master's at 0: the oldest {own} bytes" in said
    # The master has deleted them too, or more.
    of_master = own
    assert probe() is None
    of_master = 4 << 20
    assert probe() is None


def test_a_slave_that_has_not_heard_where_its_masters_log_begins_says_nothing() -> None:
    assert old_messages_probe(lambda: 3 << 20, lambda: None)() is None
