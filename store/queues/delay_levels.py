"""The delay levels, as far as the files depend on them.

The consume queue entry of a message that waits in SCHEDULE_TOPIC_XXXX has the delivery time in the
place of the tags code. So the levels are needed to make entries, in an append and in a rebuild from
the log. They are parsed before recovery. The reference parses them after it, and its rebuilt queues
deliver all delayed messages at once (store/FORMAT.md 8.1).
"""

import re
from collections.abc import Mapping

from aerobee.protocol.message.properties import PROPERTY_DELAY, PROPERTY_TIMER_OUT_MS
from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

# Milliseconds since 1970, up to some hundred thousand years from now.
_TIME = re.compile(r"[0-9]{1,16}", re.ASCII)
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL_MS = 1000
# If the clock is set back by no more than this, no message is delivered ahead of its time.
_CLOCK_STEP_MS = 1000


class DelayLevels:
    """Levels as in `1s 5s 10s 1m`, numbered from 1. Raises ValueError for any other text."""

    def __init__(self, text: str) -> None:
        self._delays_ms = [_delay_ms(part) for part in text.split()]

    @property
    def highest(self) -> int:
        """The number of the last level."""
        return len(self._delays_ms)

    def wait_ms(self, level: int, deliver_at_ms: int, now_ms: int) -> int:
        """How long a message of that level still waits; 0 when it is due.

        A time further away than the level's delay cannot be right: the clock was set back, or the
        levels were made shorter. The message is due then, as in the reference
        (store/FORMAT.md 12.1). The reference has no tolerance: if its clock is set back by a few
        milliseconds, it delivers a message with a delay of two hours at once.
        """
        wait_ms = deliver_at_ms - now_ms
        if wait_ms <= 0:
            return 0
        if level <= self.highest and wait_ms > self._delays_ms[level - 1] + _CLOCK_STEP_MS:
            return 0
        return wait_ms

    def deliver_at_ms(self, level: int, store_ms: int) -> int:
        """When a message of that level, stored then, is due."""
        level = min(level, self.highest)
        delay_ms = self._delays_ms[level - 1] if level > 0 else _UNKNOWN_LEVEL_MS
        return store_ms + delay_ms

    def tags_code(
        self, topic: str, properties: Mapping[str, str], store_ms: int, tags_code: int
    ) -> int:
        """The tags code field of the consume queue entry: the delivery time of a message that waits
        at a level, else the tags code as it is. A timed message carries its time itself."""
        if topic == TIMER_TOPIC:
            return out_ms(properties) or tags_code
        if topic != SCHEDULE_TOPIC:
            return tags_code
        try:
            level = int(properties.get(PROPERTY_DELAY, "0"))
        except ValueError:
            return tags_code
        return self.deliver_at_ms(level, store_ms) if level > 0 else tags_code


def out_ms(properties: Mapping[str, str]) -> int:
    """When a record of the timer's topic is to be looked at; 0 if its properties do not say."""
    text = properties.get(PROPERTY_TIMER_OUT_MS, "")
    return int(text) if _TIME.fullmatch(text) else 0


def _delay_ms(text: str) -> int:
    unit = _UNIT_MS.get(text[-1:])
    if unit is None or not text[:-1].isdecimal():
        raise ValueError(f"delay level {text!r} is not a number followed by s, m, h or d")
    return int(text[:-1]) * unit
