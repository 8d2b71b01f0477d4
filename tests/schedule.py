"""Which tests run on one worker, and which begin first, where a run has several workers (`-n`).

Tests that share something dear, a broker or a Spark driver, run on one worker one after the other;
any other test goes to the worker that is free. What takes long begins first, so that no worker is
left with it at the end, when the others have nothing to do; but what waits for a part that is still
being brought (tests/parts.py) lets others go first. A few tests measure how long somebody
waits; they come when all others have ended, on the one worker that is left.

xdist's own groups (`--dist loadgroup`) cannot be used: xdist 3.8 puts the group into a test's id in
a way that pytest 9.2 does not see, and every test is then a group of its own.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import campaign, drawing
from tests.parts import is_settled, parts_of, spark_versions

#: Versions of PySpark but the newest, as a pattern.
_OLDER = "|".join(map(re.escape, spark_versions()[1:]))
QUIET = "quiet"  # the group of the tests that want the machine for themselves

#: How tests' ids begin, and the group of those tests. The first fit counts. With "file" each module
#: is a group, with "alone" each test. The groups begin in this order, those of QUIET last.
GROUPS: tuple[tuple[str, str], ...] = (
    # How long a client, a message, a step of the daemon takes.
    ("tests/interop/clients/test_hostile.py", QUIET),
    ("tests/service/test_daemon.py::test_second_sigterm_leaves_at_once", QUIET),
    ("tests/service/test_damage.py::test_scrub_finds_a_flipped_bit_before", QUIET),
    (
        "tests/contract/waiting/test_delay.py::test_a_delayed_message_comes_after_its_delay_and",
        QUIET,
    ),
    ("tests/contract/waiting/test_delay.py::test_sends_go_on_while_a_level_is_far_behind", QUIET),
    # A campaign compares a client's rate with what it was; else staying up is enough.
    *((("tests/crash/crowds/test_resources.py", QUIET),) if campaign.is_full() else ()),
    *((("tests/crash/crowds/test_largest_inputs.py", QUIET),) if campaign.is_full() else ()),
    *((("tests/crash/crowds/test_few_rights.py", QUIET),) if campaign.is_full() else ()),
    # Peers have seconds for a handshake, and there are 20,000.
    *((("tests/service/test_tls_crowd.py", QUIET),) if campaign.is_full() else ()),
    # And how late messages come that waited.
    *((("tests/crash/daemon_kills/test_kill_waiting.py", QUIET),) if campaign.is_full() else ()),
    # Each of these has Spark drivers of its own, of a gigabyte each, and takes minutes.
    (rf"tests/spark/.*\[.*spark-({_OLDER})", "spark writes"),
    ("tests/spark/writing/test_sink.py", "spark writes"),
    ("tests/spark/launching/test_cluster.py", "spark writes"),
    ("tests/spark/stores/test_archive_s3.py", "spark writes"),
    ("tests/spark/launching/test_registration.py", "spark writes"),
    ("tests/spark/stores/test_jobs.py", "spark jobs"),
    ("tests/spark/reading/test_batch_read.py", "spark jobs"),
    ("tests/spark/stores/test_store_read.py", "spark jobs"),
    ("tests/spark/reading/test_sql_filter.py", "spark jobs"),
    ("tests/spark/tables/test_lake", "spark lakes"),
    ("tests/spark/", "spark streams"),
    ("tests/test_checks.py", "alone"),
    ("tests/interop/stores/test_expired_crossing.py", "alone"),
    ("tests/interop/stores/test_store_tools.py", "file"),
    # mqadmin asks both brokers once, for all tests of the file.
    ("tests/interop/administration/test_mqadmin.py", "file"),
    ("tests/crash/", "alone"),
    ("tests/sim/", "alone"),
    ("tests/interop/clients/test_our_client.py", "file"),
    ("tests/interop/clients/test_java_features.py", "file"),
    ("tests/interop/clients/test_sql_filter.py", "file"),
    ("tests/interop/clients/test_other_languages.py", "file"),
    ("tests/interop/", "alone"),
    ("tests/native/", "alone"),
    ("tests/fuzz/", "alone"),
    ("tests/service/", "alone"),
    (r"tests/contract/programs/test_client.py::\w+\[java", "contract of java"),
    ("tests/contract/", "file"),
    ("tests/budget/", "file"),
    ("tests/bench/", "file"),
    ("tests/unit/", "file"),
    ("tests/test_parts.py", "alone"),
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """This schedule, unless the command line has chosen one of xdist's."""
    return Schedule(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a worker: into the order in which the tests begin."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (group_of(item.nodeid) == QUIET, _place(item.nodeid)))


def group_of(nodeid: str) -> str:
    """The name of the test's group; its own id if it has none."""
    place = _place(nodeid)
    group = GROUPS[place][1] if place < len(GROUPS) else "file"
    if group == "alone":
        return nodeid
    if group == "spark jobs" and drawing.drawn.kind == drawing.PART:
        return "spark streams"  # few of both are drawn, so one driver does
    return nodeid.partition("::")[0] if group == "file" else group


def _place(nodeid: str) -> int:
    fits = (place for place, (begin, _) in enumerate(GROUPS) if re.match(begin, nodeid))
    return next(fits, len(GROUPS))


class Schedule(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's groups by scope, with the scopes above, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _reschedule(self, node: Any) -> None:
        """Give a worker another group when one test is left to it besides the one it runs: the
        least that it can go on with."""
        if node.shutting_down or node not in self.registered_collections:
            return
        while self._may_assign(node) and self._pending_of(self.assigned_work[node]) < 2:
            super()._assign_work_unit(node)
        # When only what wants quiet is left, all workers but one end. The last one has a test or
        # none left that it does not begin before it knows of another: it stands still until the
        # others have gone.
        if not self.workqueue or (
            not self._may_assign(node)
            and not all(one.shutting_down for one in self.nodes if one is not node)
        ):
            node.shutdown()

    def _assign_work_unit(self, node: Any) -> None:
        if self._may_assign(node):
            self._put_first_what_is_ready()
            super()._assign_work_unit(node)

    def _put_first_what_is_ready(self) -> None:
        """Move the first group that waits for no part to the front; quiet ones stay last."""
        settled = cache(is_settled)
        for scope, unit in self.workqueue.items():
            if scope != QUIET and all(settled(part) for test in unit for part in parts_of(test)):
                self.workqueue.move_to_end(scope, last=False)
                return

    def _may_assign(self, node: Any) -> bool:
        if not self.workqueue:
            return False
        return not self._only_quiet_is_left() or self.nodes == [node]

    def remove_node(self, node: Any) -> str | None:
        """A worker has ended; the last one may take what wants quiet.

        Of a worker that died the test that it ran is returned, and has failed; what it had not
        begun goes to others. (xdist 3.8 would give them its finished groups, too, after which they
        wait for ever, and the test that it died of once more.)
        """
        workload = self.assigned_work.pop(node)
        left = [name for unit in workload.values() for name, done in unit.items() if not done]
        for scope, unit in workload.items():
            if rest := {name: False for name in unit if name in left[1:]}:
                self.workqueue[scope] = rest
        for one in self.nodes:
            self._reschedule(one)
        return left[0] if left else None

    def _only_quiet_is_left(self) -> bool:
        return list(self.workqueue) == [QUIET]
