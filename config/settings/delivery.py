"""Settings of messages that are not delivered at once: delayed ones, transactions, staged batches.

Staged batches are what jobs write effectively once into topics
(docs/decisions/0010-staged-batches.md).
"""

from typing import ClassVar

from aerobee.config.settings.setting import I32_MAX, I64_MAX, Section, setting

_GIB = 1 << 30
_DAY_MS = 86_400_000
_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class DeliverySettings(Section):
    """Delayed messages and transactions."""

    section: ClassVar[str] = "delivery"

    message_delay_levels: str = setting(
        _DELAY_LEVELS,
        "messageDelayLevel",
        separator=" ",
        why="""The delay levels, numbered from 1; units s, m, h, d. A change does not concern
        messages that wait already, unless their time is further away than their level's delay.""",
    )
    flush_delay_offset_interval_ms: int = setting(
        1000,
        "flushDelayOffsetInterval",
        within=(100, _DAY_MS),
        why="""How often the progress of the delay queues is written to disk while deliveries go on;
        what was delivered since is delivered again after a crash. The first after a pause is
        written within 200 ms. RocketMQ: 10 s.""",
    )
    schedule_message_stats: bool = setting(
        True,
        "enableScheduleMessageStats",
        why="Count a delayed message for its own topic too, when it is delivered.",
    )
    schedule_async_deliver: bool = setting(
        False,
        "enableScheduleAsyncDeliver",
        effect="never",
        why="Deliver without waiting for each other's flush. Here no delivery waits for one.",
    )
    schedule_pending_limit: int = setting(
        2000,
        "scheduleAsyncDeliverMaxPendingLimit",
        within=(1, I32_MAX),
        effect="never",
        why="Most deliveries on the way at a time. Here none are.",
    )
    schedule_resends_to_block: int = setting(
        3,
        "scheduleAsyncDeliverMaxResendNum2Blocked",
        within=(1, I32_MAX),
        effect="never",
        why="Failed deliveries after which a level waits. Here it waits after the first.",
    )
    timer_enabled: bool = setting(
        True,
        "timerWheelEnable",
        live=True,
        why="""Take messages with a delivery time of their own (TIMER_DELIVER_MS and the like). Off,
        they are refused, and never delivered at once; those that wait already are delivered.""",
    )
    timer_max_delay_seconds: int = setting(
        40 * 86_400,
        "timerMaxDelaySec",
        within=(1, 40 * 86_400),
        live=True,
        why="""The furthest that a delivery time may be ahead; what asks for more is refused.
        RocketMQ 5: 3 days.""",
    )
    timer_roll_window_seconds: int = setting(
        2 * 86_400,
        "timerRollWindowSlot",
        within=(2, 40 * 86_400),
        live=True,
        why="""A message whose time is further ahead is stored again in the last quarter of this
        time, so that it outlives the segment it lies in. Never more than half of retention.hours is
        used. RocketMQ 5 counts slots of a second.""",
    )
    reject_transactions: bool = setting(
        False, "rejectTransactionMessage", why="Refuse transactional messages, with code 16."
    )
    transaction_timeout_ms: int = setting(
        6000,
        "transactionTimeOut",
        within=(1, _DAY_MS),
        why="""Age at which the producer of an undecided transaction is asked for the first time, by
        the next round; a message may name another one (CHECK_IMMUNITY_TIME_IN_SECONDS).""",
    )
    transaction_check_max: int = setting(
        15,
        "transactionCheckMax",
        within=(1, I32_MAX),
        why="""How often it is asked before the message is put aside, in TRANS_CHECK_MAX_TIME_TOPIC.
        A round in which no producer of the group is connected counts.""",
    )
    transaction_check_interval_ms: int = setting(
        60_000,
        "transactionCheckInterval",
        within=(100, _DAY_MS),
        why="Pause between two rounds of asking.",
    )


class StageSettings(Section):
    """How long and how much jobs may stage."""

    section: ClassVar[str] = "stage"

    stage_expiry_ms: int = setting(
        _DAY_MS,
        within=(1_000, 365 * _DAY_MS),
        why="""A stage that nothing was added to and no commit has named for so long is given up.
        Less than retention.hours: stages lie in the commit log.""",
    )
    stage_max_bytes: int = setting(
        64 * _GIB,
        within=(1 << 20, I64_MAX),
        why="""Bytes of stages that are neither published nor given up; beyond it jobs are told to
        try again. They are on the disk, in memory there are some hundred bytes a chunk.""",
    )
    stage_remember_ms: int = setting(
        30 * _DAY_MS,
        within=(60_000, 3650 * _DAY_MS),
        why="""How long the last batch of each query is remembered when it is published. A job that
        repeats it until then writes nothing twice; later it is refused, with the reason.""",
    )
