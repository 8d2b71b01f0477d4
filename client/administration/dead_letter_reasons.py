"""The reason why a message is a dead letter, as its number of tries shows it.

No broker stores it. The broker counts the give-back that made a message a dead letter, too
(store/FORMAT.md 12.3), so a letter was delivered again one time less than its record says. The job
`dlq` of the pipeline judges the letters of a store at rest by the same rule.
"""

from __future__ import annotations

from typing import Final

USED_UP: Final = "tries used up"
GIVEN_UP: Final = "given up by the consumer"
#: A group's retryMaxTimes unless it has another.
DEFAULT_TRIES: Final = 16


def tries_of(reconsume_times: int) -> int:
    """How often a dead letter was delivered again, by the count of its record."""
    return max(reconsume_times - 1, 0)


def reason_of(reconsume_times: int, limit: int) -> str:
    """Why it is dead, where its group may be delivered a message again `limit` times."""
    return USED_UP if tries_of(reconsume_times) >= limit else GIVEN_UP
