"""The figures of slaves that people and metrics get from the HA port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee.broker.cluster.replication.rates import Rate
from tests.unit.broker.cluster.replication.joined import RawSlave, master_at
from tests.unit.broker.cluster.replication.test_ha_port import until


async def test_a_slave_has_its_address_and_two_of_one_address_their_ports(tmp_path: Path) -> None:
    async with master_at(tmp_path) as master:
        master.put(3)
        end = master.store.marks.written
        first = await RawSlave.connect(master.port.port)
        await until(lambda: len(master.port.slaves) == 1)
        assert [one.address for one in master.port.figures()] == ["127.0.0.1"]
        second = await RawSlave.connect(master.port.port)
        await until(lambda: len(master.port.slaves) == 2)
        ports = [one.writer.get_extra_info("sockname")[1] for one in (first, second)]
        found = [one.address for one in master.port.figures()]
        assert found == sorted(f"127.0.0.1:{port}" for port in ports)
        # Neither has said where it goes on: neither counts.
        assert [(one.behind, one.is_near) for one in master.port.figures()] == [(end, False)] * 2
        first.report(1)
        await first.take(end)
        second.close()
        await until(lambda: len(master.port.slaves) == 1)
        (left,) = master.port.figures()
        assert (left.address, left.behind, left.is_near) == ("127.0.0.1", end - 1, True)
        assert (left.connection.sent_bytes, master.port.sent_bytes) == (end - 1, end - 1)
        first.report(end)
        await until(lambda: master.port.figures()[0].behind == 0)
        first.close()
        await until(lambda: not master.port.slaves)
        # A slave that is gone was sent its bytes all the same.
        assert (master.port.figures(), master.port.sent_bytes) == ([], end - 1)


async def test_lag_in_seconds_is_the_age_of_what_a_slave_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with master_at(tmp_path, ha_housekeeping_interval_ms=1_000_000) as master:
        loop, ahead = asyncio.get_running_loop(), [0.0]
        clock = loop.time
        slave = await RawSlave.connect(master.port.port)
        slave.report(1)
        await until(lambda: any(one.follower.asked for one in master.port.slaves))
        master.put(1)
        first = master.store.marks.written
        master.port.look()
        monkeypatch.setattr(loop, "time", lambda: clock() + ahead[0])
        ahead[0] = 30.0
        master.put(1)
        master.port.look()
        ahead[0] = 100.0
        assert 100.0 <= master.port.figures()[0].age_s < 110.0
        slave.report(first)
        await until(lambda: master.port.figures()[0].age_s < 99.0)
        assert 70.0 <= master.port.figures()[0].age_s < 80.0
        slave.report(master.store.marks.written)
        await until(lambda: master.port.figures()[0].age_s == 0.0)
        monkeypatch.undo()
        slave.close()


def test_a_rate_is_of_the_last_second() -> None:
    rate = Rate()
    found = []
    for now, count in ((0.0, 100), (0.5, 300), (1.0, 600), (1.5, 600), (3.0, 600)):
        rate.look(now, count)
        found.append(rate.bytes_a_second)
    assert found == [0, 0, 500, 500, 0]
