"""The lives of brokers that R1 looks at."""

from tests.sim.broker.life import BrokerPlan

_USUAL = {
    "prepare": 8,
    "decide": 8,
    "contradict": 1,
    "round": 4,
    "timed": 6,
    "recall": 1,
    "wait": 3,
    "leap": 1,
    "sync": 6,
    "check": 4,
    "save": 4,
    "flush_queues": 1,
    "allocate": 1,
}
_LIVES = _USUAL | {"kill": 2, "kill_inside": 3, "reopen": 1}

PLANS = [
    BrokerPlan("broker-sync", True, 40, _USUAL),
    BrokerPlan("broker-async", False, 40, _USUAL),
    BrokerPlan("broker-sync-lives", True, 70, _LIVES, (25, 50)),
    BrokerPlan("broker-async-lives", False, 70, _LIVES, (25, 50)),
]


def plan_named(name: str) -> BrokerPlan:
    """The plan of that name."""
    return next(plan for plan in PLANS if plan.name == name)
