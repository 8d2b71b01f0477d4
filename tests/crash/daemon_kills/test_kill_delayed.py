"""kill -9 while delayed messages are sent and given out: none is lost, none comes early.

The daemon is killed again and again in the middle of it, then let go on to the end. Messages that
come twice were given out shortly before a kill; after a stop in order nothing does.
"""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.inspect.audit_report import Level
from tests import campaign
from tests.crash.judges.records import Record
from tests.crash.running.daemons import settings_for, start_daemon
from tests.crash.running.link import SEND, SUCCESS, Link, send_fields
from tests.service.kit import Served, wait_until

TOPIC, SCHEDULE = "Delayed", "SCHEDULE_TOPIC_XXXX"
DELAYS_MS = {1: 1_000, 2: 2_000}
SETTINGS = {
    "delivery.message_delay_levels": "1s 2s",
    "delivery.flush_delay_offset_interval_ms": 100,
}


def start(folder: Path, store: Path, flush: str) -> Served:
    return start_daemon(folder, store, flush, more=SETTINGS).ready()


def send_for(port: int, seconds: float, first: int) -> list[bytes]:
    """Send delayed messages of both levels for a while; the bodies that were acknowledged."""
    acknowledged: list[bytes] = []
    until = time.monotonic() + seconds
    with Link(port) as link:
        while time.monotonic() < until:
            number = first + len(acknowledged)
            body = b"%06d" % number
            fields = send_fields(TOPIC, 0, {"DELAY": str(1 + number % 2), "KEYS": body.decode()})
            assert link.call(SEND, fields, body).code == SUCCESS
            acknowledged.append(body)
            time.sleep(0.002)  # so that a kill meets some waiting, some due and some given out
    return acknowledged


def delivered(port: int) -> list[Record]:
    with Link(port) as link:
        return link.read_queue(TOPIC, 0)[0]


def waiting(port: int) -> dict[bytes, tuple[int, Record]]:
    """The level and the record of each message that waits or waited, by body."""
    with Link(port) as link:
        return {
            one.body: (level, one)
            for level in DELAYS_MS
            for one in link.read_queue(SCHEDULE, level - 1)[0]
        }


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_no_delayed_message_is_lost_to_kills(flush: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(f"{seed} {flush}")
    store = tmp_path / "store"
    acknowledged: list[bytes] = []
    kills = campaign.size("kill delayed")
    for turn in range(kills):
        daemon = start(tmp_path / f"turn-{turn}", store, flush)
        acknowledged += send_for(daemon.port, rng.uniform(0.5, 1.5), len(acknowledged))
        daemon.process.kill()
        daemon.wait()
        daemon.close()

    daemon = start(tmp_path / "last", store, flush)
    wanted = set(acknowledged)
    wait_until(lambda: wanted <= {one.body for one in delivered(daemon.port)}, "all are delivered")
    came, stored = delivered(daemon.port), waiting(daemon.port)
    for one in came:
        level, before = stored[one.body]
        assert one.store_ms >= before.store_ms + DELAYS_MS[level]
        assert one.properties == before.properties
    copies = Counter(one.body for one in came)
    twice = sum(count - 1 for count in copies.values())
    print(f"seed {seed}: {len(acknowledged)} acknowledged, {twice} came again over {kills} kills")
    campaign.note("kill delayed", kills, messages=len(acknowledged), came_twice=twice)
    assert len(copies) == len(stored)
    daemon.terminate()
    assert daemon.wait() == 0
    daemon.close()

    findings = verify(settings_for(store, flush)).findings
    assert [one.what for one in findings if one.level is Level.DAMAGE] == []
    daemon = start(tmp_path / "after", store, flush)
    time.sleep(0.3)  # three times what a level that is due waits at most
    assert len(delivered(daemon.port)) == len(came)
    daemon.terminate()
    assert daemon.wait() == 0
    daemon.close()
