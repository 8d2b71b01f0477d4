"""One bit of message 1,000 of 24,000 flushed ones: 23,999 are served, the damage is named.

Through the real daemon, killed or stopped in order, with the default segment of 1 GiB and with
small ones, where the damaged record lies in a part of the log that a start does not read again. The
Java broker's figure for the same is in tests/interop/stores/test_bit_flip.py.
"""

import random
from pathlib import Path

import pytest

from tests import campaign
from tests.crash.disks.flipping import DAMAGED, compare, fill, flip_body_bit, served
from tests.interop.brokers import OurBroker, StoreShape

SMALL, DEFAULT = 1 << 20, 1 << 30


@pytest.mark.drawn("flipped bits")
@pytest.mark.parametrize("segment_bytes", [DEFAULT, SMALL], ids=["1-GiB", "small"])
@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("count", [1, 5, 50])
def test_flipped_bits_cost_the_messages_they_hit_and_are_named(
    tmp_path: Path, end: str, segment_bytes: int, count: int, seed: int
) -> None:
    rng = random.Random(f"{seed} {end} {segment_bytes} {count}")
    shape = StoreShape(flush="SYNC_FLUSH", segment_bytes=segment_bytes)
    broker = OurBroker(tmp_path / "our", shape)
    broker.start()
    try:
        sent = fill(broker)
        (broker.kill if end == "kill" else broker.stop)()
        damaged = [sent[DAMAGED]] if count == 1 else rng.sample(sent, count)
        for one in damaged:
            print(one.log_offset, flip_body_bit(broker, one, rng))
        broker.start()
        found = served(broker)
        assert compare(found, sent, damaged) == (set(), set())
        assert len(found) == len(sent) - count
        broker.stop()
        said = (broker.root / "serve.log").read_text()
        assert [one.log_offset for one in damaged if str(one.log_offset) not in said] == []
        campaign.note("flipped bits", 1, messages=len(sent), damaged=count)
    finally:
        broker.kill()
