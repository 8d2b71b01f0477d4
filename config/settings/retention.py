"""Settings of what is done to stored messages in the background: deletion and scrub.

Old messages are deleted gently for the disk and its readers. The scrub reads the whole store again
and again, to find damage early.
"""

from typing import ClassVar

from aerobee.config.settings.setting import Section, setting

_DAY_MS = 86_400_000


class RetentionSettings(Section):
    """When old messages are deleted, and how gently."""

    section: ClassVar[str] = "retention"

    retention_hours: int = setting(
        72,
        "fileReservedTime",
        within=(1, 876_000),
        live=True,
        why="""A segment whose last message was stored longer ago than this may be deleted. RocketMQ
        counts from the file's modification time, which copying changes.""",
    )
    delete_hours: str = setting(
        "04",
        "deleteWhen",
        separator=";",
        live=True,
        why="""Local hours of the day during which expired segments are deleted, separated by ';'.
        Empty: only when the disk fills or somebody asks for it.""",
    )
    disk_max_used_percent: int = setting(
        75,
        "diskMaxUsedSpaceRatio",
        within=(10, 95),
        clamp=True,
        live=True,
        why="With more of the disk used, expired segments are deleted at once.",
    )
    disk_force_ratio: float = setting(
        0.85,
        "diskSpaceCleanForciblyRatio",
        within=(0.01, 1.0),
        aliases=("rocketmq.broker.diskSpaceCleanForciblyRatio",),
        why="""With more of the disk used, the oldest segments are deleted before their time,
        consumed or not, until it is back at this ratio. RocketMQ: a JVM property.""",
    )
    clean_forcibly: bool = setting(
        True, "cleanFileForciblyEnable", live=True, why="Whether that may happen."
    )
    clean_interval_ms: int = setting(
        10_000,
        "cleanResourceInterval",
        within=(100, _DAY_MS),
        why="""Pause between two looks for what can be deleted. The first look comes six of these
        after the start.""",
    )
    delete_commit_log_pause_ms: int = setting(
        100,
        "deleteCommitLogFilesInterval",
        within=(0, _DAY_MS),
        why="Pause between two deleted segments, for the disk's sake.",
    )
    delete_consume_queue_pause_ms: int = setting(
        100,
        "deleteConsumeQueueFilesInterval",
        within=(0, _DAY_MS),
        why="The same for consume queue files.",
    )
    destroy_segment_after_ms: int = setting(
        120_000,
        "destroyMapedFileIntervalForcibly",
        within=(0, _DAY_MS),
        why="""A deleted segment that is still read after this loses its name; its readers keep what
        they see.""",
    )
    redelete_interval_ms: int = setting(
        120_000,
        "redeleteHangedFileInterval",
        within=(0, _DAY_MS),
        why="Pause before a segment that could not be removed, or is still read, is tried again.",
    )


class ScrubSettings(Section):
    """How fast and how often what is stored is read and checked in the background."""

    section: ClassVar[str] = "scrub"

    scrub_bytes_per_second: int = setting(
        16 << 20,
        unit="bytes",
        within=(0, 1 << 40),
        live=True,
        why="How much of the log is read a second, at most. 0: no scrub, only reads find damage.",
    )
    scrub_processor_percent: int = setting(
        5,
        within=(1, 100),
        live=True,
        why="""How much of one processor the scrub takes, at most; the smaller the messages, the
        fewer bytes that are. With 5 percent some 10,000 messages a second are read.""",
    )
    scrub_interval_hours: int = setting(
        168,
        within=(0, 876_000),
        why="""Hours from the end of one pass over the whole log to the next. After a start what it
        did not read is checked at once. 0: only that.""",
    )
