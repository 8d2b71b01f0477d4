"""The event a consumer's lost offset leaves in OFFSET_MOVED_EVENT (protocol/WIRE.md 4.12).

A pull answered with PULL_OFFSET_MOVED on a master is also stored as a message, so that operators
see which group was sent elsewhere and from where to where.
"""

from __future__ import annotations

import time

from aerobee.protocol.bodies.common import MessageQueue, dumps
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.headers.client import PullMessageHeader
from aerobee.protocol.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_WAIT,
    encode_properties,
)
from aerobee.protocol.message.record import StoreMessage
from aerobee.protocol.names import OFFSET_MOVED_TOPIC


def offset_moved_message(
    header: PullMessageHeader, new_offset: int, broker_name: str, store_host: bytes
) -> StoreMessage:
    """The event message for one moved offset."""
    group = header.consumer_group
    queue = MessageQueue(header.topic, broker_name, header.queue_id)
    body = dumps(
        {
            "consumerGroup": group,
            "messageQueue": queue,
            "offsetNew": new_offset,
            "offsetRequest": header.queue_offset,
        }
    )
    properties = {PROPERTY_KEYS: group, PROPERTY_TAGS: group, PROPERTY_WAIT: "false"}
    return StoreMessage(
        OFFSET_MOVED_TOPIC,
        0,
        0,
        0,
        time.time_ns() // 1_000_000,
        store_host,
        store_host,
        0,
        0,
        body,
        encode_properties(properties).encode(),
        tag_code(group),
        (group,),
    )
