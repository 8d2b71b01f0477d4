"""The accounts of a broker, which say who may ask it for what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aerobee.access.control import AccessControl
from aerobee.access.errors import AccountFileError
from aerobee.access.needs import BROKER_NEEDS
from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings
from aerobee.protocol.message.properties import PROPERTY_REAL_TOPIC
from aerobee.protocol.message.record import decode_record
from aerobee.protocol.names import HIDDEN_TOPICS
from aerobee.store.message_store import MessageStore

if TYPE_CHECKING:
    from aerobee.access.account_service import AccessService


def build_access(
    settings: Settings, loop: asyncio.AbstractEventLoop, store: MessageStore
) -> AccessService | None:
    """Build access control; None if everybody may do everything. Raises ConfigError without
    accounts."""
    if not settings.acl_enabled:
        return None
    # The import brings the library for YAML.
    from aerobee.access.account_service import AccessService

    def topic_at(log_offset: int) -> str | None:
        return topic_of(store, log_offset)

    try:
        return AccessService(
            loop,
            settings.rocketmq_home,
            settings.acl_file,
            lambda rules: AccessControl(rules, BROKER_NEEDS, topic_at, loop.time),
        )
    except AccountFileError as error:
        raise ConfigError("aclEnable", "true", str(error)) from None


def topic_of(store: MessageStore, log_offset: int) -> str | None:
    """The topic to which the message at a place of the log was sent; None without a message."""
    record = store.reader.record_at(log_offset)
    if record is None:
        return None
    message = decode_record(record)
    if message.topic not in HIDDEN_TOPICS:
        # In other topics a client may have set the property, to have another topic's rights
        # counted.
        return message.topic
    return message.properties.get(PROPERTY_REAL_TOPIC, message.topic)
