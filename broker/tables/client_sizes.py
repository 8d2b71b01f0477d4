"""Sizes that the broker counts for texts of heartbeats: client ids, group names, subscriptions.

They are estimates of the interpreter's own sizes, the same at each look: the bytes counted when a
text came have to be taken off when it goes, and a text takes more once it was encoded. Measured,
they are above the true sizes by a fifth to three times, because a text that two hold is counted for
both.
"""

import sys
from collections.abc import Collection, Mapping

from aerobee.protocol.filters.subscription import Subscription

# The object of a text, besides its characters.
_TEXT_BYTES = 56
_WIDEST = 4
# Bytes of a subscription in a group beside its texts and sets, and in a member: its objects, the
# places in dictionaries, the table of statements about the topic, the name of its language if it is
# not the usual language.
_SUBSCRIPTION_BYTES = 560
_STATED_BYTES = 64
# The hash of a tag: a number.
_CODE_BYTES = 32


def texts_bytes(texts: Collection[str]) -> int:
    """Bytes of these texts."""
    joined = "".join(texts)
    width = 1 if joined.isascii() else _WIDEST
    return _TEXT_BYTES * len(texts) + width * len(joined)


def subscription_bytes(one: Subscription) -> int:
    """Bytes of a group's subscription to a topic."""
    # The hashes are in a set as large as that of the tags.
    codes = 2 * sys.getsizeof(one.tags) + _CODE_BYTES * len(one.codes) if one.codes else 0
    return _SUBSCRIPTION_BYTES + codes + texts_bytes((one.topic, one.expression, *one.tags))


def stated_bytes(stated: Mapping[str, str]) -> int:
    """Bytes of the statements of a member: an expression for each topic."""
    return _STATED_BYTES * len(stated) + texts_bytes(stated) + texts_bytes(stated.values())
