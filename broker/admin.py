"""The administrative requests of one broker, put together (spec/wire.md 3.5, 3.6).

Every code not listed by any of them is answered with REQUEST_CODE_NOT_SUPPORTED, among them
UPDATE_BROKER_CONFIG: remote change of settings is off (reliability 8, "data becomes command").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aerobee.broker.admin_runtime import RuntimeRequests
from aerobee.broker.admin_stats import StatsRequests
from aerobee.broker.admin_topics import TopicRequests
from aerobee.broker.router import Handler

if TYPE_CHECKING:
    from aerobee.broker.core import BrokerCore


def admin_handlers(core: BrokerCore) -> dict[int, Handler]:
    """The handlers by request code."""
    settings = core.settings
    topics = TopicRequests(settings, core.topics, core.groups, core.offsets, core.stats, core.store)
    stats = StatsRequests(
        settings.broker_name,
        core.identity.endpoint,
        core.topics,
        core.groups,
        core.offsets,
        core.clients,
        core.stats,
        core.store,
    )
    runtime = RuntimeRequests(settings, core.topics, core.store, core.stats)
    return {**topics.handlers(), **stats.handlers(), **runtime.handlers()}
