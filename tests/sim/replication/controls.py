"""Negative controls: a side of the replication with one rule taken away. The simulation must catch
each. A control is an argument of the life's construction; the product knows nothing of it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from aerobee.store.log.commit_log import Copied
from aerobee.store.log.replication.appender import Appender
from aerobee.store.log.replication.feed import Feed, Follower
from tests.sim.replication.machine import Case, Rules


@dataclass(frozen=True)
class Control:
    """A rule taken away, the lives that show it, and what has to be reported."""

    name: str
    rules: Rules
    change: Callable[[Case], Case] = lambda case: case
    more: dict[str, float] = field(default_factory=dict)
    caught_by: frozenset[str] = frozenset({"I11"})
    lives: int = 300

    def case(self, case: Case) -> Case:
        """The case, made to show it."""
        return self.change(replace(case, weights=case.weights | self.more))


class _Believed(Follower):
    """Its reports count, whatever they are."""

    def report(self, log_offset: int) -> None:
        if not self.asked:
            self.position = min(log_offset, self._feed.end)
            self.asked = True
        self.reported = log_offset
        self._feed.settle()


class BelievingFeed(Feed):
    """Does not compare reports with what was sent, or with the end of the log."""

    def admit(self, slave: Hashable | None = None) -> Follower:
        follower = super().admit(slave)
        follower.__class__ = _Believed
        return follower


class FeedUpToWritten(Feed):
    """Sends what is not in the file yet."""

    @property
    def end(self) -> int:
        return self._marks.written


class FeedOfTheDead(Feed):
    """Counts reports of connections that have ended."""

    def forget(self, follower: Follower) -> None:
        self.settle()


class UncheckedAppender(Appender):
    """Takes what has landed, record or not."""

    def check(self) -> bool:
        segment = self._segments.find(self.written)
        if segment is not None and len(self._incoming):
            self._keep(segment, Copied(self._incoming.landed))
        return False


CONTROLS = [
    Control("ack before the report", Rules(ack_before_report=True)),
    Control("report above what was sent counts", Rules(feed=BelievingFeed), more={"lie": 4.0}),
    Control(
        "sent above committed",
        Rules(feed=FeedUpToWritten),
        lambda case: replace(case, sync_flush=False, pool=True),
        more={"commit": 3.0},
    ),
    Control(
        "block taken unchecked",
        Rules(appender=UncheckedAppender),
        lambda case: replace(case, hurt=0.1),
    ),
    Control("dead connection counts", Rules(feed=FeedOfTheDead)),
    Control(
        "one slave counts twice",
        Rules(names=False),
        lambda case: replace(case, slaves=1, copies=3),
        more={"cut": 3.0, "power": 2.0},
    ),
    Control(
        "logs not compared",
        Rules(compares=False),
        lambda case: replace(case, sync_flush=False),
        more={"power": 4.0},
        lives=1_000,
    ),
]
