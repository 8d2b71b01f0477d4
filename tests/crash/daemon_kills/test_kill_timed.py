"""kill -9 while messages with a time of their own are sent, rolled, recalled and delivered: none is
lost, none comes early, none that was recalled comes at all.

The daemon is killed again and again in the middle of it, then let go on to the end. Messages that
come twice were delivered shortly before a kill.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.inspect.audit_report import Level
from tests import campaign
from tests.crash.judges.records import Record
from tests.crash.running.daemons import settings_for, start_daemon
from tests.crash.running.link import SEND, SUCCESS, Link, send_fields
from tests.service.kit import Served, wait_until

TOPIC = "Timed"
RECALL, ILLEGAL_OPERATION = 370, 604
# Messages of more than two seconds are rolled.
SETTINGS = {
    "delivery.timer_roll_window_seconds": "2",
    "delivery.flush_delay_offset_interval_ms": 100,
}
LONGEST_MS = 4000
#: A busy machine takes its time; a lost message never comes.
ALL_S = 120.0


@dataclass
class Sent:
    """An acknowledged message."""

    bodies: set[bytes] = field(default_factory=set)
    recalled: set[bytes] = field(default_factory=set)
    #: Messages whose recall was not answered before a kill.
    unsure: set[bytes] = field(default_factory=set)


def start(folder: Path, store: Path, flush: str) -> Served:
    return start_daemon(folder, store, flush, more=SETTINGS).ready()


def send_for(port: int, seconds: float, sent: Sent, rng: random.Random) -> None:
    """Send for a while, and recall some."""
    until = time.monotonic() + seconds
    with Link(port) as link:
        while time.monotonic() < until:
            body = b"%06d" % len(sent.bodies)
            properties = {
                "TIMER_DELAY_MS": str(rng.randrange(50, LONGEST_MS)),
                "UNIQ_KEY": body.decode(),
            }
            answer = link.call(SEND, send_fields(TOPIC, 0, properties), body)
            assert answer.code == SUCCESS, answer.remark
            sent.bodies.add(body)
            if rng.random() < 0.2:
                sent.unsure.add(body)
                asked = {"topic": TOPIC, "recallHandle": answer.ext["recallHandle"]}
                answer = link.call(RECALL, asked)
                assert answer.code in (SUCCESS, ILLEGAL_OPERATION), answer.remark
                sent.unsure.discard(body)
                if answer.code == SUCCESS:
                    sent.recalled.add(body)
            time.sleep(0.002)  # so that a kill meets some waiting, some due and some delivered


def send_last(port: int, body: bytes) -> None:
    """A message that is due when all others have been."""
    with Link(port) as link:
        properties = {"TIMER_DELAY_MS": str(LONGEST_MS + 1_000)}
        assert link.call(SEND, send_fields(TOPIC, 0, properties), body).code == SUCCESS


def deliver_ms(one: Record) -> int:
    """The time that the message was to be delivered at, as its record says."""
    entries = dict(entry.split(b"\1", 1) for entry in one.properties.split(b"\2") if entry)
    return int(entries[b"TIMER_DELIVER_MS"])


def delivered(port: int) -> list[Record]:
    with Link(port) as link:
        return link.read_queue(TOPIC, 0)[0]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_no_timed_message_is_lost_to_kills(flush: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(f"{seed} {flush}")
    store = tmp_path / "store"
    sent = Sent()
    kills = campaign.size("kill delayed")
    for turn in range(kills):
        daemon = start(tmp_path / f"turn-{turn}", store, flush)
        send_for(daemon.port, rng.uniform(0.5, 1.5), sent, rng)
        daemon.process.kill()
        daemon.wait()
        daemon.close()

    daemon = start(tmp_path / "last", store, flush)
    wanted = sent.bodies - sent.recalled - sent.unsure
    missing = set(wanted)

    def all_came() -> bool:
        missing.difference_update(one.body for one in delivered(daemon.port))
        return not missing

    try:
        wait_until(all_came, "all are delivered", ALL_S)
    finally:
        print(f"seed {seed}: of {len(wanted)} missing: {sorted(missing)[:20]}")
    # A recalled message would come before this message.
    send_last(daemon.port, b"last")
    wait_until(lambda: delivered(daemon.port)[-1].body == b"last", "the last one is delivered")
    came = delivered(daemon.port)
    for one in came:
        assert one.store_ms >= deliver_ms(one)
    copies = Counter(one.body for one in came)
    assert not sent.recalled & copies.keys()
    twice = sum(count - 1 for count in copies.values())
    print(f"seed {seed}: {len(sent.bodies)} acknowledged, {twice} came again over {kills} kills")
    daemon.terminate()
    assert daemon.wait() == 0
    daemon.close()

    findings = verify(settings_for(store, flush)).findings
    assert [one.what for one in findings if one.level is Level.DAMAGE] == []
    daemon = start(tmp_path / "after", store, flush)
    send_last(daemon.port, b"after")
    wait_until(lambda: delivered(daemon.port)[-1].body == b"after", "one more is delivered")
    assert len(delivered(daemon.port)) == len(came) + 1
    daemon.terminate()
    assert daemon.wait() == 0
    daemon.close()
