"""What a plan of a repair is made of: steps with words and an act, and what cannot be done."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec

from aerobee.store.inspect.report import Report
from aerobee.store.repair.at_rest import StoreAtRest

P = ParamSpec("P")

#: Findings that a rebuild of what is derived mends.
QUEUES_WRONG = frozenset(
    {"queue-missing", "queue-file-size", "queue-file-missing", "unit-missing", "unit-wrong"}
    | {"unit-tags", "unit-dangling", "unit-beyond-log", "unit-order", "queue-hole"}
    | {"record-stray", "rebuild-broken-off", "ext-file-size", "ext-wrong"}
)
INDEX_WRONG = frozenset(
    {"index-missing", "index-size", "index-header", "index-entry", "index-slot", "index-count"}
    | {"index-time", "key-missing", "key-stray", "rebuild-broken-off"}
)


@dataclass
class Step:
    """One thing to do. `log` says that it changes the log; what is `first` is in the way of all
    else, and changes nothing that queues or index depend on."""

    what: str
    keeps: str
    loses: str
    act: Callable[[StoreAtRest], object] = field(repr=False)
    log: bool = False
    first: bool = False


@dataclass
class Plan:
    """All steps in order; `impossible` says what no repair can do, and what a person can."""

    report: Report
    steps: list[Step] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    queues: bool = False
    index: bool = False
    set_back: bool = False
    filled: list[tuple[int, int]] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """How many messages are lost that queues still name, or whose records are left out."""
        log = self.report.log
        named = [end - first for ranges in log.lost.values() for _, first, end in ranges]
        return sum(named) + len(log.strays)

    @property
    def anything(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.steps or self.queues or self.index)


def does(
    function: Callable[Concatenate[StoreAtRest, P], object], *args: P.args, **more: P.kwargs
) -> Callable[[StoreAtRest], object]:
    """What a step does: the function, with all but the store given."""
    return lambda rest: function(rest, *args, **more)
