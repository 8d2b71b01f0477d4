"""The lives that are looked at: what each is about follows from its seed."""

import random

from tests.sim.replication.machine import Case

_USUAL = {
    "put": 10.0,
    "batch": 3.0,
    "connect": 8.0,
    "flow": 16.0,
    "stream": 6.0,
    "arrive": 5.0,
    "report": 2.0,
    "check": 1.0,
    "sync": 4.0,
    "dispatch": 2.0,
    "flush_queues": 1.0,
    "allocate": 3.0,
    "operator": 1.5,
    "mend": 2.0,
}
#: Each life has some of them.
_FAULTS = {
    "cut": 2.0,
    "tire": 2.0,
    "sign": 1.0,
    "reopen": 1.0,
    "kill": 1.5,
    "power": 1.5,
    "fail_sync": 0.4,
    "full": 1.0,
    "retain": 2.5,
    "replace_disk": 0.5,
    "lie": 1.0,
}
_KEPT = frozenset({"tire"})


def case_of(seed: int) -> Case:
    """The case of a life."""
    chance = random.Random(f"case {seed}")
    faults = {
        name: most for name, most in _FAULTS.items() if name in _KEPT or chance.random() < 0.5
    }
    weights = _USUAL | faults
    if "full" in faults:
        weights["room"] = 2.0
    slaves = chance.choice((1, 1, 2))
    sync_flush = chance.random() < 0.4
    pool = not sync_flush and chance.random() < 0.3
    if pool:
        weights["commit"] = 5.0
    return Case(
        slaves=slaves,
        copies=chance.choice((2, 2, 2, 3) if slaves > 1 else (2,) * 9 + (3,)),
        sync_flush=sync_flush,
        ack_durable=chance.random() < 0.4,
        slave_sync_flush=chance.random() < 0.3,
        pool=pool,
        behind_most=chance.choice((1 << 30, 1 << 30, 2000)),
        compiled=chance.random() < 0.5,
        weights=weights,
        read_fails=chance.choice((0.0, 0.0, 0.03)),
        hurt=chance.choice((0.0, 0.0, 0.03)),
    )
