"""The workloads of R1, and how many states of each are looked at."""

from tests.sim.workload import Plan

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

PLANS = [
    Plan("sync", True, 40, _USUAL),
    Plan("async", False, 40, _USUAL | {"sync": 2}),
    Plan("sync-lives", True, 60, _USUAL | {"kill": 1, "reopen": 1, "fail_sync": 1}, (20, 40)),
    Plan("async-lives", False, 60, _USUAL | {"kill": 1, "reopen": 1, "fail_sync": 1}, (20, 40)),
    Plan("sync-topics", True, 40, _USUAL | {"delete_topic": 3, "kill": 1}, (20,)),
    Plan("async-topics", False, 40, _USUAL | {"delete_topic": 3, "kill": 1}, (20,)),
]


def plan_named(name: str) -> Plan:
    """The plan of that name."""
    return next(plan for plan in PLANS if plan.name == name)
