"""Settings of consumers that choose messages by a SQL92 expression over their properties."""

from dataclasses import dataclass
from typing import ClassVar

from aerobee.config.settings.setting import setting


@dataclass(frozen=True, kw_only=True)
class FilterSettings:
    """SQL92 subscriptions; their limits are in the section limits."""

    section: ClassVar[str] = "filters"

    property_filter: bool = setting(
        True,
        "enablePropertyFilter",
        why="""Serve consumers with SQL92 expressions; without it they are refused with code 1.
        RocketMQ: false.""",
    )
    filter_retry: bool = setting(
        False,
        "filterSupportRetry",
        why="""Judge a SQL92 subscription to a retry topic by the filters that its group has for the
        topics the messages came from. Retry topics that are subscribed by tag, as clients do it by
        themselves, are not judged.""",
    )
