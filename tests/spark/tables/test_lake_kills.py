"""Topics to Parquet, Delta and Iceberg while driver and broker are killed at drawn moments."""

from __future__ import annotations

import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import campaign, parts
from tests.interop.brokers import Broker
from tests.interop.processes import wait_until
from tests.spark.messages import new_topic, send
from tests.spark.tables.lakes import LAKES, Command, Lake, arguments

WAIT_S = 280.0
#: The files that show how far a batch has got; a kill comes at one of these steps or shortly after.
STEPS = {
    "planned": "_aerobee/checkpoint/offsets/[0-9]*",
    "written": "**/*.parquet",
    "committed": "_aerobee/checkpoint/commits/[0-9]*",
}


class Sender:
    """Sends messages that differ, and knows what has come of them."""

    def __init__(self, broker: Broker, topic: str, dice: random.Random) -> None:
        self._broker, self._topic, self._dice = broker, topic, dice
        self.count = self.crc = 0

    def send(self, count: int = 150) -> None:
        for queue in (0, 1):
            bodies = [self._dice.randbytes(self._dice.randrange(1, 200)) for _ in range(count)]
            send(self._broker, self._topic, bodies, queue, batch=50)
            self.count += count
            self.crc += sum(map(zlib.crc32, bodies))

    @property
    def sums(self) -> dict[str, int]:
        return {"messages": self.count, "different": self.count, "crc": self.crc}


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[[str, list[str]], Command]]:
    """Runs the command in the test's folder; ends what still runs."""
    made: list[Command] = []

    def make(kind: str, words: list[str]) -> Command:
        made.append(Command(kind, words, tmp_path))
        return made[-1]

    yield make
    for one in made:
        if one.running:
            one.kill()


@pytest.mark.parametrize("kind", sorted(LAKES))
def test_each_message_is_in_the_table_once_though_driver_and_broker_are_killed(
    kind: str,
    lake_of: Callable[[str], Lake],
    new_broker: Callable[..., Broker],
    command: Callable[[str, list[str]], Command],
    tmp_path: Path,
) -> None:
    lake = lake_of(kind)
    dice = campaign.rng(f"lake kills {lake.kind}")
    broker = new_broker().start()
    topic = new_topic(broker, queues=2)
    table = tmp_path / "table"
    words = arguments(
        lake.kind, broker, topic, table, "--trigger", "0", "--max-per-batch", "150",
        "--source", "pullTimeoutMs=20000", "--report-every", "1",
    )  # fmt: skip
    sender = Sender(broker, topic, dice)
    stream = command(lake.kind, words)
    kills = ["driver", "broker"] * (campaign.size("lake kills") // 2)
    dice.shuffle(kills)
    for victim in kills:
        step = dice.choice([*STEPS])
        _wait_for_new(stream, table, STEPS[step], sender)
        time.sleep(dice.random() * 0.3)
        if victim == "driver":
            stream.kill()
            stream = command(lake.kind, words)
        else:
            broker.kill()
            broker.start()
        campaign.note("lake kills", 1)
    sender.send()
    _wait_for_new(stream, table, STEPS["committed"], sender)
    parts.begin_watch_anew()
    # It is there once, so a second run of it is told to wait.
    held = lake.refused(broker, topic, table)
    assert f"from topic {topic} to {table} is under way" in held
    assert stream.stop() == 0, stream.said()
    assert "as asked by a signal" in stream.said()
    assert "messages in" in stream.said()
    assert "\tat " not in stream.said()  # no stack of Java's
    parts.begin_watch_anew()
    lake.done(broker, topic, table)
    assert lake.sums(table) == sender.sums


def test_a_stream_ends_in_order_by_the_signal_of_a_terminal(
    lake_of: Callable[[str], Lake],
    our_broker: Broker,
    command: Callable[[str, list[str]], Command],
    tmp_path: Path,
) -> None:
    topic = new_topic(our_broker, queues=1)
    send(our_broker, topic, [b"one", b"two"], batch=2)
    lake_of("parquet")
    words = arguments("parquet", our_broker, topic, tmp_path / "table", "--json")
    stream = command("parquet", words)
    done = tmp_path / "table" / "_aerobee" / "checkpoint" / "commits" / "0"
    wait_until(lambda: done.exists() or not stream.running, WAIT_S, "the first batch")
    assert stream.stop(signal.SIGINT) == 0, stream.said()
    assert '"messages": 2' in stream.said()


def _wait_for_new(stream: Command, table: Path, pattern: str, sender: Sender) -> None:
    """Sends until the stream has got to a step once more; it must not have ended."""
    # Each step has its own time: a driver and a stream that begin take minutes beside others.
    parts.begin_watch_anew()
    before = set(table.glob(pattern))
    sender.send()

    def is_new() -> bool:
        assert stream.running, stream.said()
        return not before >= set(table.glob(pattern))

    wait_until(is_new, WAIT_S, f"a new {pattern}", every_s=0.005)
