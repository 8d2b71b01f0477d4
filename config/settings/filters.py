"""Settings of consumers that choose messages by a SQL92 expression over their properties."""

from typing import ClassVar

from aerobee.config.settings.setting import I64_MAX, Section, setting


class FilterSettings(Section):
    """SQL92 subscriptions; their limits are in the section limits."""

    section: ClassVar[str] = "filters"

    property_filter: bool = setting(
        True,
        "enablePropertyFilter",
        why="""Serve consumers with SQL92 expressions; without it they are refused with code 1.
        RocketMQ: false.""",
    )
    filter_bitmap: bool = setting(
        False,
        "enableCalcFilterBitMap",
        why="""Note of each message, when it is dispatched, which groups' filters it meets, in a bit
        map of the extension files (enableConsumeQueueExt, without which it has no effect). Pulls
        then pass over what their group does not want without a look at its properties; each
        message of such a topic is judged once by each group's filter instead. Worth it where few
        messages are wanted, or messages are large and pulled late.""",
    )
    filter_retry: bool = setting(
        False,
        "filterSupportRetry",
        why="""Judge a SQL92 subscription to a retry topic by the filters that its group has for the
        topics the messages came from. Retry topics that are subscribed by tag, as clients do it by
        themselves, are not judged.""",
    )
    filter_keep_ms: int = setting(
        86_400_000,
        "filterDataCleanTimeSpan",
        within=(0, I64_MAX),
        why="How long the filter of a group is kept after its last consumer has left.",
    )
    filter_groups: int = setting(
        32,
        "expectConsumerNumUseFilter",
        within=(1, 10_000),
        why="""Groups that are expected to filter one topic by SQL92. With the next it decides how
        large a bit map is: 112 bits, or 3,352 for a thousand groups.""",
    )
    filter_error_percent: int = setting(
        20,
        "maxErrorRateOfBloomFilter",
        within=(1, 99),
        why="How many of a hundred messages a bit map may wrongly call met.",
    )
