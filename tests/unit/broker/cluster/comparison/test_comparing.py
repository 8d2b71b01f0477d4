"""A slave follows a master whose log continues its own, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from aerobee.broker.cluster.comparison import first_difference
from aerobee.broker.cluster.comparison.comparing import Asked, RefusalKind, Refused
from aerobee.broker.cluster.comparison.first_difference import samples
from aerobee.broker.cluster.comparison.master_requests import (
    MasterLog,
    MasterRefuses,
    MasterUnreachable,
)
from aerobee.store.log.replication.log_ranges import LogRanges, RangeGone, RangeNotRead
from aerobee.store.message_store import MessageStore
from tests.unit.broker.cluster.comparison.masters import MASTER, NearMaster, Stores
from tests.unit.store.support import SEGMENT, flip, log_segment


class Near:
    """Stores, whose master answers in this process while it is open."""

    def __init__(self, path: Path, *, java: bool) -> None:
        self.stores = Stores(path)
        self._java = java
        self._open: list[MessageStore] = []

    def master(self) -> NearMaster:
        store = MessageStore.open(self.stores.master_settings)
        self._open.append(store)
        return NearMaster(self.stores.master_settings, store, java=self._java)

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture(params=["ours", "java"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Near]:
    pair = Near(tmp_path, java=request.param == "java")
    yield pair
    pair.close()


def refused(outcome: Asked | Refused, kind: RefusalKind, *texts: str) -> Refused:
    assert isinstance(outcome, Refused), outcome
    assert outcome.kind is kind, outcome
    for text in texts:
        assert text in outcome.text
    return outcome


# --- who it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind", "texts"),
    [
        ({"cluster_name": "Other"}, RefusalKind.CLUSTER, ("Other", "brokerClusterName")),
        ({"broker_name": "b"}, RefusalKind.NAME, ("name b,", "brokerName")),
        ({"broker_role": "SLAVE", "broker_id": 2}, RefusalKind.NOT_MASTER, ("haMasterAddress",)),
        ({"broker_role": "SLAVE", "broker_id": 1}, RefusalKind.NOT_MASTER, ("own id",)),
        ({"broker_id": 3}, RefusalKind.NOT_MASTER, ("brokerId=3",)),
        ({"segment_bytes": 1 << 30}, RefusalKind.SEGMENT, ("mappedFileSizeCommitLog", "4096")),
    ],
)
async def test_a_broker_that_is_not_its_master_is_refused(
    near: Near, changes: dict[str, object], kind: RefusalKind, texts: tuple[str, ...]
) -> None:
    master = near.master()
    master.change = lambda log: log._replace(**changes)  # type: ignore[arg-type]
    found = refused(await near.stores.outcome(master), kind, MASTER, *texts)
    assert found.log_offset is None


async def test_it_does_not_follow_itself(near: Near) -> None:
    master = near.master()
    refused(await near.stores.outcome(master, "192.0.2.1:1", MASTER), RefusalKind.ITSELF, MASTER)
    assert master.asked == 0


async def test_a_slave_with_the_masters_id_is_refused(near: Near) -> None:
    near.stores.slave_settings = near.stores.slave_settings.with_changes(broker_id=0)
    refused(await near.stores.outcome(near.master()), RefusalKind.SAME_ID, "above 0")


async def test_a_slave_without_an_account_learns_where_its_keys_belong(near: Near) -> None:
    master = near.master()

    def refuse(_log: MasterLog) -> MasterLog:
        raise MasterRefuses("the master refuses request 31020: no account")

    master.change = refuse
    outcome = await near.stores.outcome(master)
    refused(outcome, RefusalKind.ACCESS, "no account", "tools.yml", "aclToolsFile")


# --- from where -----------------------------------------------------------------------------------


async def test_an_empty_slave_asks_for_all(near: Near) -> None:
    assert await near.stores.outcome(near.master()) == Asked(0)
    near.close()
    near.stores.put_into_master(3)
    master = near.master()
    assert await near.stores.outcome(master) == Asked(1)
    master.change = lambda log: log._replace(min_offset=2 * SEGMENT, max_offset=3 * SEGMENT)
    assert await near.stores.outcome(master) == Asked(2 * SEGMENT)


async def test_a_slave_asks_for_what_follows_its_last_record(near: Near) -> None:
    near.stores.put_into_master(50)
    near.stores.copy()
    slave = near.stores.open_slave()
    end = slave.written
    slave.close()
    assert end > 3 * SEGMENT
    near.stores.put_into_master(30)
    master = near.master()
    assert await near.stores.outcome(master) == Asked(end)
    assert master.asked <= 6


async def test_a_slave_as_far_as_its_master_asks_for_the_end(near: Near) -> None:
    near.stores.put_into_master(5)
    near.stores.copy()
    master = near.master()
    slave_end = master._ranges.end
    assert await near.stores.outcome(master) == Asked(slave_end)
    # The master has deleted all that the slave has.
    master.change = lambda log: log._replace(min_offset=slave_end)
    assert await near.stores.outcome(master) == Asked(slave_end)


async def test_what_the_master_has_deleted_meanwhile_is_a_gap(near: Near) -> None:
    near.stores.put_into_master(5)
    near.stores.copy()
    master = near.master()
    end = master._ranges.end
    master.change = lambda log: log._replace(min_offset=SEGMENT, max_offset=2 * SEGMENT)
    outcome = await near.stores.outcome(master)
    found = refused(outcome, RefusalKind.GAP, f"ends at {end}", str(SEGMENT), "empty")
    assert found.log_offset == end


# --- what differs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [20, 22])
async def test_a_slave_that_is_ahead_is_refused_with_the_masters_end(
    near: Near, shared: int
) -> None:
    near.stores.put_into_master(shared)
    near.stores.copy()
    near.stores.put_into_slave(5)
    master = near.master()
    end = master._ranges.end
    outcome = await near.stores.outcome(master)
    path = near.stores.slave_settings.store_path
    found = refused(outcome, RefusalKind.AHEAD, f"aerobee store truncate {path} --at {end} --yes")
    assert found.log_offset == end
    near.stores.cut_slave(end)
    assert await near.stores.outcome(master) == Asked(end)


async def test_a_slave_with_messages_under_an_empty_master_is_to_be_emptied(near: Near) -> None:
    near.stores.put_into_slave(5)
    found = refused(await near.stores.outcome(near.master()), RefusalKind.AHEAD, "move", "empty")
    assert found.log_offset == 0
    assert "truncate" not in found.text
    # It empties the slave: nobody is to read it as the second of two steps.
    assert "Choose which messages count. " in found.text
    assert ". Otherwise stop the slave, move" in found.text


@pytest.mark.parametrize("shared", [1, 9, 25])
@pytest.mark.parametrize("masters", [4, 40])
@pytest.mark.parametrize("slaves", [4, 40])
async def test_logs_that_have_parted_are_refused_with_the_first_record_of_the_slaves_own(
    near: Near, shared: int, masters: int, slaves: int
) -> None:
    near.stores.put_into_master(shared)
    near.stores.copy()
    near.stores.put_into_master(masters)
    own = near.stores.put_into_slave(slaves)
    master = near.master()
    outcome = await near.stores.outcome(master)
    found = refused(outcome, RefusalKind.DIFFERS, f"--at {own[0]} ", "lost+found")
    assert found.log_offset == own[0]
    assert ". Otherwise stop the slave and cut it" in found.text
    near.stores.cut_slave(own[0])
    assert await near.stores.outcome(master) == Asked(own[0])


@pytest.fixture
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples and ranges so small that a log of these tests is a large one: a head fits, no body
    does."""
    monkeypatch.setattr(first_difference, "_NEWEST_BYTES", 50)
    monkeypatch.setattr(first_difference, "_SAMPLE_BYTES", 100)
    monkeypatch.setattr(first_difference, "MOST_RANGE_BYTES", 3000)


@pytest.mark.usefixtures("fine")
@pytest.mark.parametrize("shared", [1, 2, 30, 31, 55])
@pytest.mark.parametrize("slaves", [1, 60])
async def test_equal_bodies_and_blanks_of_logs_that_have_parted_deceive_nobody(
    near: Near, shared: int, slaves: int
) -> None:
    """Both write the same messages of one size after they have parted."""
    stores = near.stores
    stores.put_into_master(shared, body=b"x" * 1200)
    stores.copy()
    stores.put_into_master(70, body=b"x" * 1200)
    own = stores.put_into_slave(slaves, body=b"x" * 1200)
    master = near.master()
    found = refused(await stores.outcome(master), RefusalKind.DIFFERS)
    assert found.log_offset == own[0]
    assert master.asked < 60


@pytest.mark.usefixtures("fine")
async def test_a_large_log_is_followed_after_few_questions(near: Near) -> None:
    near.stores.put_into_master(800)
    near.stores.copy()
    near.stores.put_into_master(3)
    master = near.master()
    assert isinstance(await near.stores.outcome(master), Asked)
    assert master.asked <= 36


def test_samples_are_apart_and_as_many_at_most() -> None:
    gib, mib, kib = 1 << 30, 1 << 20, 1 << 10
    found = samples(0, 1000 * gib + 5, 1000 * gib - mib, gib)
    assert len(found) <= 34
    assert found[0] == (0, 64 * kib)
    assert found[1] == (gib - 64 * kib, gib + 64 * kib)
    assert found[-1] == (1000 * gib - mib, 1000 * gib + 5)
    assert samples(gib, gib + 9, gib, gib) == [(gib, gib + 9)]
    close = samples(5, 9000, 8000, 4096)
    assert close == [(5, 8000), (8000, 9000)]
    assert all(before[1] <= after[0] for before, after in pairwise(found))


async def test_logs_that_part_where_a_segment_begins_are_cut_there(near: Near) -> None:
    offsets = near.stores.put_into_master(30)
    at = next(offset for offset in offsets if offset % SEGMENT == 0 and offset)
    near.stores.copy()
    flip(log_segment(Path(near.stores.slave_settings.store_path), at), 140)
    # All that follows is other, too.
    for offset in offsets[offsets.index(at) :]:
        start = offset - offset % SEGMENT
        flip(log_segment(Path(near.stores.master_settings.store_path), start), offset - start + 150)
    slave, master = near.stores.open_slave(), near.master()
    ranges = slave.make_log_ranges()
    slave.close()
    assert ranges.end == master._ranges.end
    outcome = await near.stores.outcome(master)
    assert refused(outcome, RefusalKind.DIFFERS).log_offset == at


async def test_damage_in_a_sampled_range_is_found_to_its_record(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    offsets = stores.put_into_master(60)
    stores.copy()
    hit = offsets[31]
    start = hit - hit % SEGMENT
    flip(log_segment(Path(stores.slave_settings.store_path), start), hit - start + 200)
    store = MessageStore.open(stores.master_settings)
    outcome = await stores.outcome(NearMaster(stores.master_settings, store, java=False))
    store.close()
    assert refused(outcome, RefusalKind.DIFFERS).log_offset == hit


async def test_a_master_that_loses_its_beginning_meanwhile_is_asked_again(near: Near) -> None:
    near.stores.put_into_master(30)
    near.stores.copy()
    near.stores.put_into_master(10)
    near.stores.put_into_slave(10)
    master = near.master()
    ranges = master._ranges

    def later(log: MasterLog) -> MasterLog:
        return log if master.asked <= 2 else log._replace(min_offset=ranges.end)

    master.change = later
    if not master._java:
        master._ranges = _Shrunk(master._store)
    with pytest.raises(MasterUnreachable, match="while it was compared"):
        await near.stores.outcome(master)


class _Shrunk(LogRanges):
    """A log whose beginning is deleted."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store._core)

    def cut(self, start: int, end: int) -> tuple[int, int]:
        return super().cut(max(start, min(SEGMENT, end)), end)


async def test_a_slave_whose_own_disk_fails_is_told_so(
    near: Near, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.stores.put_into_master(3)
    near.stores.copy()
    master = near.master()

    def fail(*_given: object) -> None:
        raise RangeNotRead("segment cannot be read: Input/output error")

    for name in ("piece_at", "checksums"):
        original = getattr(LogRanges, name)

        def of_slave(self: LogRanges, *given: object, original: object = original) -> object:
            return original(self, *given) if self is master._ranges else fail()  # type: ignore[operator]

        monkeypatch.setattr(LogRanges, name, of_slave)
    outcome = await near.stores.outcome(master)
    refused(outcome, RefusalKind.OWN_LOG, "Input/output error", "store verify")


async def test_segments_that_retention_removes_meanwhile_are_no_refusal(
    near: Near, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.stores.put_into_master(3)
    near.stores.copy()
    master = near.master()

    def gone(*_given: object) -> None:
        raise RangeGone("removed meanwhile")

    monkeypatch.setattr(LogRanges, "record_start", gone)
    if not master._java:
        monkeypatch.setattr(LogRanges, "checksums", gone)
    with pytest.raises((MasterUnreachable, RangeGone), match="removed meanwhile"):
        await near.stores.outcome(master)
