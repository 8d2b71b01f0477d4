"""Claims about when deletion runs, what it may take, and when forced deletion has enough."""

import errno
import os

import pytest

from aerobee.store.background.retention.deletion_plan import choose, needs_in_queue
from aerobee.store.background.retention.segment_times import MESSAGE, LastStored, SegmentPlace
from aerobee.store.background.retention.triggers import (
    FORCED,
    MANUAL,
    SPACE,
    TIME,
    Disks,
    RetentionRules,
    Verdict,
    judge,
    parse_hours,
)
from aerobee.store.disk.files import DiskSpace, Files

DAY_MS = 86_400_000
SIZE = 100
RULES = RetentionRules(3 * DAY_MS, frozenset({4}), 0.75, 0.85, 0.90, True)


def disk(percent: int) -> DiskSpace:
    return DiskSpace(percent * 1000, (100 - percent) * 1000)


def disks(*logs: int, queues: int = 10) -> Disks:
    return Disks({f"log{n}": disk(used) for n, used in enumerate(logs)}, {"queues": disk(queues)})


def verdict(
    at: Disks, *, hour: int = 12, manual: bool = False, rules: RetentionRules = RULES
) -> Verdict:
    return judge(rules, hour, at, manual=manual)


# --- triggers -------------------------------------------------------------------------------------


def test_hours_are_a_list_and_may_be_none() -> None:
    assert parse_hours("04") == {4}
    assert parse_hours("4; 16 ;23") == {4, 16, 23}
    assert parse_hours("") == frozenset()


def test_time_triggers_for_the_whole_hour_and_no_other() -> None:
    assert verdict(disks(10), hour=4).triggers == (TIME,)
    assert verdict(disks(10), hour=3).triggers == verdict(disks(10), hour=5).triggers == ()


def test_space_triggers_above_the_limit_not_at_it() -> None:
    assert verdict(disks(75)).triggers == ()
    assert verdict(disks(76)).triggers == (SPACE,)


def test_emptiest_of_several_log_disks_counts() -> None:
    assert verdict(disks(99, 75)).triggers == ()
    assert verdict(disks(99, 76)).triggers == (SPACE,)


def test_disk_of_the_queues_is_looked_at_if_the_log_did_not_trigger() -> None:
    found = verdict(disks(10, queues=80))
    assert found.triggers == (SPACE,)
    assert not found.forced
    assert verdict(disks(10, queues=86)).forced
    # The log's disk triggers: how full the queues' is does not matter any more.
    assert not verdict(disks(80, queues=99)).forced


def test_missing_directory_triggers_but_forces_nothing() -> None:
    found = verdict(Disks({"log": None}, {"queues": disk(10)}))
    assert found.triggers == (SPACE,)
    assert not found.forced


def test_directory_that_cannot_be_asked_does_not_count() -> None:
    class Half(Files):
        def disk_space(self, path: str) -> DiskSpace:
            if path == "bad":
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            if path == "gone":
                raise FileNotFoundError(errno.ENOENT, "gone", path)
            return disk(95)

    found = Disks.ask(Half(), ("bad", "full", "gone"), "bad")
    assert found.logs == {"full": disk(95), "gone": None}
    assert found.queues == {}
    assert verdict(Disks({}, {})).triggers == ()


def test_manual_triggers_at_any_hour() -> None:
    assert verdict(disks(10), manual=True).triggers == (MANUAL,)
    assert verdict(disks(80), hour=4, manual=True).triggers == (TIME, SPACE, MANUAL)


def test_refused_sends_trigger_whatever_the_other_limit_says() -> None:
    rules = RetentionRules(DAY_MS, frozenset(), 0.95, 0.85, 0.90, True)
    assert verdict(disks(90), rules=rules).triggers == ()
    found = verdict(disks(91), rules=rules)
    assert found.triggers == (SPACE,)
    assert found.forced


# --- forced ---------------------------------------------------------------------------------------


def test_forced_only_above_the_force_ratio_and_if_allowed() -> None:
    assert not verdict(disks(85)).forced
    assert verdict(disks(86)).forced
    tame = RetentionRules(DAY_MS, frozenset(), 0.75, 0.85, 0.90, clean_forcibly=False)
    assert not verdict(disks(99), rules=tame).forced


def test_nothing_is_forced_without_a_trigger() -> None:
    rules = RetentionRules(DAY_MS, frozenset({4}), 0.90, 0.85, 0.95, True)
    assert verdict(disks(88), rules=rules) == Verdict((), False, True, 0.85, disks(88).logs)
    assert verdict(disks(88), rules=rules, hour=4).forced


def test_forced_deletion_has_enough_when_the_emptiest_disk_is_at_the_ratio_again() -> None:
    found = verdict(disks(90, 95))
    assert not found.relieved({})
    assert not found.relieved({"log0": 4_999})
    assert found.relieved({"log0": 5_000})
    assert not found.relieved({"log1": 9_999})
    assert found.relieved({"log1": 10_000})


def test_for_the_disk_of_the_queues_one_segment_a_run_is_forced() -> None:
    found = verdict(disks(10, queues=99))
    assert not found.relieved({})
    assert found.relieved({"log0": 1})


# --- choosing -------------------------------------------------------------------------------------


def segments(count: int) -> list[SegmentPlace]:
    return [SegmentPlace(f"log0/{n * SIZE:020d}", n * SIZE, (n + 1) * SIZE) for n in range(count)]


def chosen(
    at: Verdict, days_old: list[float], *, safe_end: int = 10**9, most: int = 10
) -> tuple[list[tuple[int, str]], str]:
    """(start, reason) of the deleted segments, given ages in days, and why no more go."""
    places = segments(len(days_old))
    now_ms = 100 * DAY_MS

    def last_stored(segment: SegmentPlace, following: SegmentPlace) -> LastStored:
        assert following.start == segment.end
        return LastStored(now_ms - int(days_old[segment.start // SIZE] * DAY_MS), MESSAGE)

    choice = choose(RULES, at, places, last_stored, safe_end, now_ms, most)
    return [(one.start, one.reason) for one in choice.doomed], choice.stopped_by


NIGHT = verdict(disks(10), hour=4)


def test_expired_ones_go_from_the_oldest_on() -> None:
    assert chosen(NIGHT, [5, 3, 2.9, 1])[0] == [(0, TIME), (SIZE, TIME)]


def test_one_whose_time_is_still_to_come_is_as_old_as_what_follows_it() -> None:
    """The clock was wrong when it was written, and has been set back since."""
    assert chosen(NIGHT, [-9999, -9999, 5, 3.5, 1])[0] == [(n * SIZE, TIME) for n in range(4)]
    assert chosen(NIGHT, [-9999, 2, 1])[0] == []
    assert chosen(NIGHT, [-9999, -9999, -9999]) == ([], "the next one has not expired")


def test_none_behind_one_that_has_not_expired() -> None:
    found, why = chosen(NIGHT, [5, 1, 5, 5])
    assert found == [(0, TIME)]
    assert "not expired" in why


def test_last_one_never_goes() -> None:
    assert chosen(NIGHT, [9, 9])[0] == [(0, TIME)]
    assert chosen(NIGHT, [9])[0] == chosen(NIGHT, [])[0] == []


def test_no_trigger_no_deletion() -> None:
    assert chosen(verdict(disks(10)), [9, 9, 9])[0] == []


def test_ten_at_most_in_one_run() -> None:
    found, why = chosen(NIGHT, [9] * 15)
    assert len(found) == 10
    assert "10" in why


def test_nothing_that_is_not_safe_yet() -> None:
    assert chosen(NIGHT, [9] * 5, safe_end=2 * SIZE)[0] == [(0, TIME), (SIZE, TIME)]
    assert chosen(NIGHT, [9] * 5, safe_end=2 * SIZE - 1)[0] == [(0, TIME)]


def test_forced_ones_are_told_from_expired_ones_and_stop_when_it_is_enough() -> None:
    full = Verdict((SPACE,), True, True, 0.85, {"log0": DiskSpace(1000 - 50, 50)})
    # 95 % of 1,000 bytes used: 100 bytes have to go.
    assert chosen(full, [1] * 5)[0] == [(0, FORCED)]
    assert chosen(full, [9, 1, 1])[0] == [(0, SPACE)]
    fuller = Verdict((SPACE,), True, True, 0.85, {"log0": DiskSpace(1000, 0)})
    assert chosen(fuller, [9, 1, 1, 1])[0] == [(0, SPACE), (SIZE, FORCED)]


# --- who needs it ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("committed", "behind"), [(0, 30), (20, 30), (49, 1), (50, 0), (70, 0)])
def test_group_needs_what_it_has_not_committed_of_what_goes(committed: int, behind: int) -> None:
    # The queue begins at 20 and will begin at 50.
    needs = needs_in_queue({"g": committed}, "T", 3, 20, 50)
    assert [need.messages for need in needs] == ([behind] if behind else [])


def test_groups_are_listed_the_one_most_behind_first() -> None:
    needs = needs_in_queue({"near": 40, "far": 10, "done": 90}, "T", 3, 0, 50)
    assert [(need.group, need.queue_offset, need.messages) for need in needs] == [
        ("far", 10, 40),
        ("near", 40, 10),
    ]
