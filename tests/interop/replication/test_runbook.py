"""The runbook "From Java to ours and back" of docs/operations.md, step by step.

A Java master becomes ours, and ours Java's again, while a producer and a consumer group run all the
time. The steps are named in the comments as the runbook numbers them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.administration.mqadmin import AdminPeer
from tests.interop.brokers import Broker, JavaBroker, OurBroker
from tests.interop.kit import require
from tests.interop.processes import wait_until
from tests.interop.replication.load import COMMIT, END_TRANSACTION, HALF, STORED
from tests.interop.replication.pairs import NameServer, log_end, shape_of
from tests.interop.replication.stored_files import check_logs_equal
from tests.interop.replication.traffic import Place, Traffic
from tests.interop.wire import SEND_MESSAGE_V2, SUCCESS

TOPIC, OTHER, GROUP, AWAY = "live", "kept", "readers", "away"
QUEUES, OTHER_QUEUES, AWAY_OFFSET = 4, 3, 2
A, B = "broker-a", "broker-b"
# The runbook's: a Java broker asks for tables each ten seconds.
STILL_S = 15.0
# Longer than a change of roles takes.
DELAY_S, DELAY_LEVEL = 60, 3
DELAYED = 5
QUERY_OFFSET, COMMIT_OFFSET, ALL_TOPICS, ALL_GROUPS = 14, 15, 21, 201


class Cluster:
    """A name server, broker-a twice, on either side, and broker-b of ours."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = NameServer(root / "names")
        self.java = self._broker(JavaBroker, "java", A, "ASYNC_MASTER")
        self.ours = self._broker(OurBroker, "ours", A, "SLAVE")
        self.second = self._broker(OurBroker, "second", B, "ASYNC_MASTER")

    def _broker(self, kind: type[Broker], folder: str, name: str, role: str) -> Broker:
        extra = {"brokerName": name, "messageDelayLevel": f"1s 2s {DELAY_S}s"}
        shape = shape_of(role, extra)
        # RocketMQ's own time between two copies of the offsets, and between two saves of them.
        return kind(self.root / folder, shape=shape, registers_at=self.names.address)

    def restart_as(self, broker: Broker, role: str) -> None:
        """Set the role and the id that goes with it, and start or restart the broker."""
        broker.shape.extra |= {"brokerRole": role, "brokerId": "1" if role == "SLAVE" else "0"}
        if broker.children:
            broker.stop()
        broker.start()

    def aerobee(self, *words: str, may_fail: bool = False) -> str:
        """The output of one command of ours."""
        done = subprocess.run(
            [sys.executable, "-m", "aerobee.cli", *words],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert may_fail or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def ha(self) -> dict[str, dict[str, Any]]:
        """`aerobee broker ha` of broker-a, by role."""
        words = "broker", "ha", "-n", self.names.address, "--broker", A, "--json"
        # In its first second a Java broker answers with an error.
        told = self.aerobee(*words, may_fail=True)
        return {row["role"]: row for row in json.loads(told)["brokers"]}

    def wait_level(self, state: str, master: Broker) -> None:
        """Wait until the slave has all, and nothing has moved for as long as the runbook says."""
        began, end = time.monotonic(), -1

        def still() -> bool:
            nonlocal began, end
            found = self.ha()
            slave = found.get("slave", {})
            at = slave.get("lag"), slave.get("state"), found["master"]["end"]
            if at != (0, state, end):
                began, end = time.monotonic(), found["master"]["end"]
            return time.monotonic() - began >= STILL_S

        wait_until(still, 120, f"{A} stands still", 0.5)
        assert log_end(master) == end

    def end(self) -> None:
        for broker in (self.java, self.ours, self.second):
            broker.kill()
        self.names.end()


@contextmanager
def cluster_of(root: Path) -> Iterator[Cluster]:
    """A cluster whose processes end with the block."""
    cluster = Cluster(root)
    try:
        yield cluster
    finally:
        cluster.end()


def test_from_java_to_ours_and_back(tmp_path: Path) -> None:
    require("java-broker")
    require("java-4.9.8")
    with cluster_of(tmp_path) as cluster:
        cluster.java.start()
        cluster.java.create_topic(TOPIC, QUEUES)
        cluster.java.create_topic(OTHER, OTHER_QUEUES)
        mqadmin = AdminPeer(tmp_path / "mqadmin", cluster.names.address)
        try:
            at_java = f"-b {cluster.java.address}".split()
            mqadmin.run("updateSubGroup", *at_java, "-g", AWAY, "-r", "7")
            commit(cluster.java, AWAY_OFFSET)
            with Traffic(cluster.names.address, TOPIC, GROUP) as traffic:
                _there_and_back(cluster, mqadmin, traffic)
        finally:
            mqadmin.end()


def _there_and_back(cluster: Cluster, mqadmin: AdminPeer, traffic: Traffic) -> None:
    names, java, ours = ("-n", cluster.names.address), cluster.java, cluster.ours
    wait_until(lambda: traffic.sent_to(A) > 100, 60, "messages are sent")
    # 1. Another master, and the topics there.
    cluster.second.start()
    listed = mqadmin.run("topicList", *names).out.split()
    for topic, queues in ((TOPIC, QUEUES), (OTHER, OTHER_QUEUES)):
        assert topic in listed
        cluster.aerobee("topic", "create", topic, "--broker", B, "--queues", str(queues), *names)
    wait_until(lambda: traffic.sent_to(B) > 100, 60, "the second broker is sent to")
    # 2. A slave, as its file says.
    cluster.aerobee("config", "check", str(ours.write_config()))
    ours.start()
    # 3. It becomes level.
    wait_until(lambda: cluster.ha().get("slave", {}).get("state") == "follows", 60, "it follows")
    assert cluster.ha()["master"]["state"] == "does not tell of its slaves"
    pending = Pending(java, "there")
    # 4 and 5. Producers go elsewhere, and nothing moves any more.
    mqadmin.run("wipeWritePerm", *names, "-b", A)
    cluster.wait_level("follows", java)
    # 6. The roles change.
    java.stop()
    changed_ms = change(cluster, traffic, ours, "SYNC_MASTER")
    route = mqadmin.run("topicRoute", "-t", TOPIC, *names).out
    assert ours.address in route
    assert re.findall(r'"perm":\s*(\d)', route) == ["6", "6"]
    settle(traffic, ours, pending, changed_ms)
    # 7. The Java broker is a slave, with its store as it was left. Back, 1 and 2: it is level.
    cluster.restart_as(java, "SLAVE")
    wait_until(lambda: cluster.ha()["slave"]["state"] in ("level", "near enough"), 60, "it is near")
    pending = Pending(ours, "back")
    # Back, 4.
    mqadmin.run("wipeWritePerm", *names, "-b", A)
    cluster.wait_level("level", ours)
    # Back, 5.
    end = log_end(ours)
    ours.stop()
    changed_ms = change(cluster, traffic, java, "ASYNC_MASTER")
    settle(traffic, java, pending, changed_ms)

    traffic.end_sending()
    assert traffic.failures == []
    sent = traffic.acknowledged[A] | traffic.acknowledged[B]
    wait_until(lambda: sent <= traffic.taken.keys(), 60, "all that was sent is consumed")
    assert traffic.taken.keys() - sent == {
        f"{kind}-{way}-{number}"
        for way in ("there", "back")
        for kind, count in (("delayed", DELAYED), ("half", 1))
        for number in range(count)
    }
    assert traffic.twice == []
    check_logs_equal(java, ours, end, least_segments=2)
    # Each body has one place: nothing was stored twice.
    assert [body for body, places in traffic.taken.items() if len(set(places)) > 1] == []


def change(cluster: Cluster, traffic: Traffic, broker: Broker, role: str) -> int:
    """Make a slave the master, whose own is gone, and see what it has of the tables. Returns when
    that began, in milliseconds."""
    at_change = offsets(broker)
    # Nothing was written for so long that all was consumed, and committed, and copied.
    assert at_change == ends(broker)
    traffic.changes_roles(at_change)
    began_ms = time.time_ns() // 1_000_000
    cluster.restart_as(broker, role)
    with broker.wire() as wire:
        topics = json.loads(wire.done(ALL_TOPICS).body)["topicConfigTable"]
        groups = json.loads(wire.done(ALL_GROUPS).body)["subscriptionGroupTable"]
        away = wire.done(QUERY_OFFSET, {"consumerGroup": AWAY, "topic": OTHER, "queueId": 0})
    assert [topics[name]["writeQueueNums"] for name in (TOPIC, OTHER)] == [QUEUES, OTHER_QUEUES]
    assert groups[AWAY]["retryMaxTimes"] == 7
    assert away.ext["offset"] == str(AWAY_OFFSET)
    return began_ms


def settle(traffic: Traffic, master: Broker, pending: Pending, changed_ms: int) -> None:
    """The new master takes messages, and finishes what was pending."""
    began = traffic.sent_to(A)
    wait_until(lambda: traffic.sent_to(A) > began + 100, 60, f"{master.kind} is sent to")
    pending.commit_half(master)
    bodies = {*pending.delayed, pending.half}
    wait_until(lambda: bodies <= traffic.taken.keys(), 2 * DELAY_S, "what was pending comes")
    # The master before it had delivered none of them.
    with master.wire() as wire:
        stored = {one.body: one.store_ms for one in wire.read_topic(TOPIC, QUEUES)}
    assert [body for body in bodies if stored[body] < changed_ms] == []


class Pending:
    """Messages that wait at a master for their delay, and one for its decision."""

    def __init__(self, master: Broker, way: str) -> None:
        self.delayed = [f"delayed-{way}-{number}" for number in range(DELAYED)]
        self.half = f"half-{way}-0"
        with master.wire() as wire:
            for body in self.delayed:
                assert wire.send(TOPIC, 0, body.encode(), DELAY=str(DELAY_LEVEL)).code in STORED
            properties = {"TRAN_MSG": "true", "PGROUP": "halves", "UNIQ_KEY": f"U{self.half}"}
            ext = {
                "a": "halves", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": HALF,
                "g": 1_700_000_000_000, "h": 0, "j": 0, "k": "false", "m": "false",
                "i": "\x02".join(f"{name}\x01{value}" for name, value in properties.items()),
            }  # fmt: skip
            answer = wire.call(SEND_MESSAGE_V2, ext, self.half.encode())
            assert answer.code in STORED, answer
        self._decision = {
            "producerGroup": "halves", "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": int(answer.ext["msgId"][-16:], 16), "commitOrRollback": COMMIT,
            "fromTransactionCheck": "false", "msgId": "", "transactionId": "",
        }  # fmt: skip

    def commit_half(self, master: Broker) -> None:
        """Decide at another master."""
        with master.wire() as wire:
            answer = wire.call(END_TRANSACTION, self._decision)
            assert answer.code in STORED, answer


def commit(broker: Broker, offset: int) -> None:
    """Commit an offset of the group that has no member."""
    with broker.wire() as wire:
        where = {"consumerGroup": AWAY, "topic": OTHER, "queueId": 0}
        for _ in range(offset):
            assert wire.send(OTHER, 0, b"read").code in STORED
        wire.done(COMMIT_OFFSET, {**where, "commitOffset": offset})


def offsets(broker: Broker) -> dict[Place, int]:
    """The offsets of the readers' group that a broker knows, by queue."""
    found = {}
    with broker.wire() as wire:
        for queue in range(QUEUES):
            answer = wire.call(
                QUERY_OFFSET, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue}
            )
            found[Place(A, queue)] = int(answer.ext["offset"]) if answer.code == SUCCESS else -1
    return found


def ends(broker: Broker) -> dict[Place, int]:
    """Where the readers' queues end."""
    with broker.wire() as wire:
        return {Place(A, queue): wire.max_offset(TOPIC, queue) for queue in range(QUEUES)}
