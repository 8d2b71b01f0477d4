"""What a consumer subscribes to, checked before any broker hears of it."""

from __future__ import annotations

import time

from aerobee.client.errors import CallerError
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import Subscription, parse_tag_expression
from aerobee.protocol.names import check_topic_name


def make_subscription(topic: str, expression: str = "*") -> Subscription:
    """A tag subscription; its version, the time in ms, tells the broker which of two is newer."""
    try:
        check_topic_name(topic)
        return parse_tag_expression(topic, expression, time.time_ns() // 1_000_000)
    except BadRequest as error:
        raise CallerError(error.remark) from error
