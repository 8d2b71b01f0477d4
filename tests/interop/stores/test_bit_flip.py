"""How many of 24,000 flushed messages the Java broker serves after a flipped bit of message 1,000.

It cuts its log at the first record that does not check out, so it loses what stands behind it. The
figure is printed, and stands in docs/reliability.md beside ours
(tests/crash/disks/test_bit_flip.py).
"""

import random
from collections.abc import Callable

from tests.crash.disks.flipping import COUNT, DAMAGED, compare, fill, flip_body_bit, served
from tests.interop.brokers import Broker, StoreShape


def test_java_broker_loses_what_stands_behind_a_flipped_bit(
    new_broker: Callable[..., Broker], seed: int
) -> None:
    broker = new_broker("java", shape=StoreShape(flush="SYNC_FLUSH", segment_bytes=1 << 30))
    broker.start()
    sent = fill(broker)
    broker.kill()
    damaged = sent[DAMAGED]
    print(flip_body_bit(broker, damaged, random.Random(seed)))
    broker.start()
    found = served(broker)
    missing, _ = compare(found, sent, [damaged])
    print(f"Java serves {len(found)} of {COUNT}; acknowledged, flushed and lost: {len(missing)}")
    assert len(missing) > COUNT // 2
