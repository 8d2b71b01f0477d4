"""The workloads of R1, and how many states of each are looked at."""

from tests.sim.storage.workload import Plan

_USUAL = {
    "put": 10,
    "batch": 3,
    "half": 2,
    "sync": 5,
    "put_in_sync": 2,
    "dispatch": 5,
    "flush_queues": 3,
    "allocate": 2,
}

_LIVES = _USUAL | {"kill": 1, "kill_inside": 2, "reopen": 1, "fail_sync": 1}
_TOPICS = _USUAL | {"delete_topic": 3, "kill": 1, "kill_inside": 2}
_CLOCKS = _USUAL | {"kill": 1, "kill_inside": 2, "reopen": 1, "set_clock": 6}
_KILLS = {"put": 6, "half": 1, "sync": 3, "dispatch": 2, "allocate": 2, "kill_inside": 8}

PLANS = [
    Plan("sync", True, 40, _USUAL),
    Plan("async", False, 40, _USUAL | {"sync": 2}),
    Plan("sync-lives", True, 60, _LIVES, (20, 40)),
    Plan("async-lives", False, 60, _LIVES, (20, 40)),
    Plan("sync-topics", True, 40, _TOPICS, (20,)),
    Plan("async-topics", False, 40, _TOPICS, (20,)),
    # Segments of three or four messages, so a kill often hits a segment that is being made.
    Plan("sync-kills", True, 40, _KILLS, (20,), (400, 900), segment=4096),
    Plan("async-kills", False, 40, _KILLS, (20,), (400, 900), segment=4096),
    # R9: the wall clock is set all the time.
    Plan("sync-clocks", True, 60, _CLOCKS, (20, 40), (40, 250), segment=4096),
    Plan("async-clocks", False, 60, _CLOCKS, (20, 40), (40, 250), segment=4096),
]


def plan_named(name: str) -> Plan:
    """The plan of that name."""
    return next(plan for plan in PLANS if plan.name == name)
