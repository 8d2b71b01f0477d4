"""The daemon is killed with kill -9 at random while batches are staged, decided and published: the
writers go on by themselves, and each row is there once.

Every point of the broker's side is enumerated in tests/crash/kills/test_staging_crash.py;
here it is the whole daemon, its sockets and its client.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aerobee.client.blocking_roles import PullConsumer
from aerobee.pipeline.sink.task import abort_write, commit_write, write_partition
from aerobee.pipeline.sink.write_plan import plan_write
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.names import SCHEDULE_TOPIC
from tests import campaign
from tests.crash.daemon_kills.lasting import LastingDaemon
from tests.service.kit import wait_until
from tests.unit.pipeline.sink.test_sink import fields

# The first row makes the topic, which planning tells.
pytestmark = pytest.mark.filterwarnings("ignore:topic .* is on no broker")

QUERIES, BATCHES, PARTITIONS, ROWS = 3, 4, 2, 400
KILLS = 12
LATEST = 18  # the level of two hours: those rows wait until the end


class Job:
    """One query's driver and tasks; `written` are the bodies of decided batches."""

    def __init__(self, name_server: str, number: int, seed: int) -> None:
        self._name = f"query-{number}"
        self._random = random.Random(f"{seed}/{number}")
        given = {
            "nameServer": name_server, "topic": "Staged", "batchBytes": "8192",
            "retryTimeoutMs": "120000", "guarantee": "effectively-once",
        }  # fmt: skip
        columns = fields(body="string", delayTimeLevel="int")
        self._plan = plan_write(given, columns, streaming=True)
        self.written: list[str] = []

    def run(self, enough: Callable[[], bool]) -> None:
        """Some batches, and as many more as it takes until there was trouble enough."""
        batch = 0
        while batch < BATCHES or not enough():
            self._batch(2 * batch)
            batch += 1

    def _batch(self, batch: int) -> None:
        plan = self._plan
        mark = f"{self._name}-{batch}"
        if self._random.random() < 0.5:  # a try whose driver gave up
            abort_write(
                plan,
                [write_partition(plan, self._name, batch, 0, [(f"no-{mark}", n)]) for n in (0, 1)],
            )
            mark += "b"
            batch += 1
        results = [
            write_partition(plan, self._name, batch, n, self._rows(mark, n))
            for n in range(PARTITIONS)
        ]
        self.written += [body for n in range(PARTITIONS) for body, _ in self._rows(mark, n)]
        for _ in range(self._random.randint(1, 2)):
            commit_write(plan, results)

    def _rows(self, mark: str, partition: int) -> list[tuple[str, int]]:
        body = f"{mark}-{partition}-{{}}-" + "x" * 100
        return [(body.format(n), LATEST if n % 5 == 0 else 0) for n in range(ROWS)]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_batches_survive_kills_of_the_daemon(tmp_path: Path, flush: str, seed: int) -> None:
    least = campaign.size("kill staging")
    chance = random.Random(f"{seed} {flush}")
    daemon = LastingDaemon(tmp_path, f"store.flush_disk_type={flush}")
    over = threading.Event()
    try:
        daemon.start()
        jobs = [Job(daemon.name_server, number, seed) for number in range(QUERIES)]
        with ThreadPoolExecutor(QUERIES) as pool:
            running = [pool.submit(job.run, lambda: daemon.kills >= least) for job in jobs]
            for _ in range(KILLS):
                if all(one.done() for one in running):
                    break
                over.wait(chance.uniform(0.05, 0.6))
                daemon.kill()
                daemon.start()
            for one in running:
                one.result()
        expected = Counter(body for job in jobs for body in job.written)
        wait_until(lambda: found(daemon.name_server).total() >= expected.total(), "all rows")
        assert found(daemon.name_server) == expected, f"seed={seed}"
        campaign.note("kill staging", daemon.kills, rows=expected.total())
        assert daemon.kills >= least
    finally:
        daemon.close()


def found(name_server: str) -> Counter[str]:
    """Bodies of the topic, and of what waits for it, by how often they are there."""
    bodies: Counter[str] = Counter()
    with PullConsumer(name_server, "reader") as consumer:
        queues = consumer.queues("Staged")
        waiting = MessageQueue(SCHEDULE_TOPIC, queues[0].broker_name, LATEST - 1)
        for queue in (*queues, waiting):
            offset = 0
            while (result := consumer.pull(queue, offset)).messages:
                bodies.update(message.body.decode() for message in result.messages)
                offset = result.next_offset
    return bodies
