"""Settings of the store: where its files are, how large, when synced, how they are read.

Sizes are part of the file format: a directory written with one segment size cannot be opened with
another (store/FORMAT.md 1.2). The start says so instead of trying.
"""

from typing import ClassVar

from aerobee.config.settings.setting import I32_MAX, I64_MAX, Limit, Section, setting

_HOUR_MS = 3_600_000
# A record's size and position are 32-bit within one segment file.
_SEGMENT_HIGH = I32_MAX
# A consume queue entry has 20 bytes: offset, size, tag code (store/FORMAT.md 5.1).
_UNIT_BYTES = 20
# Bytes of a record beside its body: 91 fixed bytes, 12 more for each IPv6 host, the longest topic
# and properties, and the blank that closes a segment (store/FORMAT.md 2.1, 2.4, 2.5).
RECORD_OVERHEAD_BYTES = 91 + 2 * 12 + 127 + 32_767 + 8


class StoreSettings(Section):
    """Paths, sizes, flushing and reading."""

    section: ClassVar[str] = "store"

    store_path: str = setting(
        "~/store",
        "storePathRootDir",
        why="""Directory of everything the broker keeps. A leading ~ is the home directory (the
        same place as RocketMQ's own default). One process at a time: it is locked.""",
    )
    commit_log_path: str = setting(
        "",
        "storePathCommitLog",
        separator=",",
        why="""Directory of the commit log, or several, separated by ',': segments are dealt to them
        in turn, those that are too full left out. Empty: commitlog below the store directory.""",
    )
    read_only_commit_log_paths: str = setting(
        "",
        "readOnlyCommitLogStorePaths",
        separator=",",
        why="""Directories, separated by ',', whose segments are read but which get no new ones. One
        that is being retired may be named in commit_log_path as well.""",
    )
    commit_log_segment_bytes: int = setting(
        1_073_741_824,
        "mappedFileSizeCommitLog",
        within=(65_536, _SEGMENT_HIGH),
        why="""Size of one commit log file, reserved on disk ahead of need (this one and the next).
        Small machines take less. Never change it under existing data.""",
    )
    consume_queue_segment_bytes: int = setting(
        6_000_000,
        "mappedFileSizeConsumeQueue",
        within=(_UNIT_BYTES, _SEGMENT_HIGH),
        why="""Size of one consume queue file, rounded up to a multiple of 20 bytes (300,000
        messages). Never change it under existing data.""",
    )
    consume_queue_ext_enabled: bool = setting(
        False,
        "enableConsumeQueueExt",
        why="""Keep tags codes, store times and, with enableCalcFilterBitMap, bit maps of filters in
        files beside the consume queues: 20 bytes a message more, and its map.""",
    )
    consume_queue_ext_segment_bytes: int = setting(
        50_331_648,
        "mappedFileSizeConsumeQueueExt",
        within=(24, _SEGMENT_HIGH),
        why="Size of one file of these. Never change it under existing data.",
    )
    index_enabled: bool = setting(
        True, "messageIndexEnable", why="Index message keys and unique ids, for queries by key."
    )
    index_slots: int = setting(
        5_000_000,
        "maxHashSlotNum",
        within=(1, 100_000_000),
        why="Hash slots of one index file (4 bytes each). Never change it under existing data.",
    )
    index_entries: int = setting(
        20_000_000,
        "maxIndexNum",
        within=(2, 100_000_000),
        why="Keys of one index file (20 bytes each). Never change it under existing data.",
    )
    index_safe: bool = setting(
        False,
        "messageIndexSafe",
        effect="later",
        why="Let the index's time stamp hold back where a recovery may begin.",
    )
    flush_disk_type: str = setting(
        "ASYNC_FLUSH",
        "flushDiskType",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
        why="""SYNC_FLUSH answers a send after its bytes are on the disk: a power cut loses nothing
        acknowledged. ASYNC_FLUSH answers at once: a killed process loses nothing, a power cut up to
        flush_interval_ms and a little more.""",
    )
    flush_interval_ms: int = setting(
        500,
        "flushIntervalCommitLog",
        within=(1, _HOUR_MS),
        why="Pause between two looks at the commit log under ASYNC_FLUSH.",
    )
    flush_timed: bool = setting(
        True,
        "flushCommitLogTimed",
        why="Keep that pause even when messages arrive; otherwise each arrival may end it.",
    )
    flush_least_pages: int = setting(
        4,
        "flushCommitLogLeastPages",
        within=(0, 1_000_000),
        why="Do not sync for less than this, until the thorough interval is over.",
    )
    flush_thorough_interval_ms: int = setting(
        10_000,
        "flushCommitLogThoroughInterval",
        within=(1, _HOUR_MS),
        why="After this long even a single byte is synced.",
    )
    sync_flush_timeout_ms: int = setting(
        5000,
        "syncFlushTimeout",
        within=(1, 600_000),
        why="A SYNC_FLUSH send not on disk by then is answered FLUSH_DISK_TIMEOUT: stored, unsure.",
    )
    commit_interval_ms: int = setting(
        200,
        "commitIntervalCommitLog",
        within=(1, _HOUR_MS),
        why="Pause between two looks at the transient pool for what is to go into the files.",
    )
    commit_least_pages: int = setting(
        4,
        "commitCommitLogLeastPages",
        within=(0, 1_000_000),
        why="Do not write less than this, until the thorough interval is over.",
    )
    commit_thorough_interval_ms: int = setting(
        200,
        "commitCommitLogThoroughInterval",
        within=(1, _HOUR_MS),
        why="After this long without a write even a single byte goes.",
    )
    consume_queue_flush_interval_ms: int = setting(
        1000,
        "flushIntervalConsumeQueue",
        within=(1, _HOUR_MS),
        why="Pause between two flushes of the consume queues (they can be rebuilt from the log).",
    )
    consume_queue_flush_least_pages: int = setting(
        2,
        "flushConsumeQueueLeastPages",
        within=(0, 1_000_000),
        why="A queue with less new than this waits, until the thorough interval is over.",
    )
    consume_queue_flush_thorough_interval_ms: int = setting(
        60_000,
        "flushConsumeQueueThoroughInterval",
        within=(1, 24 * _HOUR_MS),
        why="After this long every queue and the checkpoint are flushed.",
    )
    max_message_bytes: int = setting(
        4_194_304,
        "maxMessageSize",
        within=(1, I32_MAX),
        why="""Largest message body. It has to fit a frame and a segment, with its properties; the
        default shrinks to fit small segments.""",
        limit=Limit(
            "the large batch that is being stored, one at a time: its messages and their records",
            "code 13 with the reason",
            'aerobee_refused_requests_total{reason="message_illegal"}',
            bytes_each=26,
        ),
    )
    page_cache_busy_timeout_ms: int = setting(
        1000,
        "osPageCacheBusyTimeOutMills",
        within=(1, 600_000),
        why="An append that takes longer than this makes the broker answer busy meanwhile.",
    )
    check_crc_on_recover: bool = setting(
        True,
        "checkCRCOnRecover",
        why="Check the bodies' CRC when the log is read at the start: slower, finds torn pages.",
    )
    check_reads: str = setting(
        "unchecked",
        choices=("unchecked", "always", "never"),
        why="""Which records are checked, CRC and all, before they are sent to a consumer: those not
        yet read since the start, each one, or none. A damaged record that is checked is never sent.
        A check costs about 3 microseconds a message.""",
    )
    query_max_messages: int = setting(
        64, "maxMsgsNumBatch", within=(1, 1024), why="Most messages a query by key returns."
    )
    unique_query_max_messages: int = setting(
        32,
        "defaultQueryMaxNum",
        within=(1, 1024),
        why="Most messages a query by unique id returns.",
    )
    transfer_bytes_memory: int = setting(
        262_144,
        "maxTransferBytesOnMessageInMemory",
        unit="bytes",
        within=(1, I32_MAX),
        why="Most bytes of one pull answer from recent messages; one message always goes.",
    )
    transfer_count_memory: int = setting(
        32,
        "maxTransferCountOnMessageInMemory",
        unit="messages",
        within=(1, 1_000_000),
        why="Most messages of one pull answer from recent messages.",
    )
    transfer_bytes_disk: int = setting(
        65_536,
        "maxTransferBytesOnMessageInDisk",
        unit="bytes",
        within=(1, I32_MAX),
        why="Most bytes of one pull answer from old messages, which the disk has to fetch.",
    )
    transfer_count_disk: int = setting(
        8,
        "maxTransferCountOnMessageInDisk",
        unit="messages",
        within=(1, 1_000_000),
        why="Most messages of one pull answer from old messages.",
    )
    transfer_bytes_bulk: int = setting(
        4_194_304,
        "maxTransferBytesBulk",
        unit="bytes",
        within=(0, I32_MAX),
        why="""Most bytes of one pull answer to a reader that asks for large ones (maxMsgBytes, as
        the Spark source does), a quarter of it from old messages. The larger, the fewer requests,
        and the longer others wait meanwhile: 4 MiB of small messages take some 10 ms. 0: nobody
        gets more than from an ordinary pull.""",
    )
    transfer_count_bulk: int = setting(
        32_768,
        "maxTransferCountBulk",
        unit="messages",
        within=(1, 1_000_000),
        why="Most messages of one such answer.",
    )
    memory_ratio_percent: int = setting(
        40,
        "accessMessageInMemoryMaxRatio",
        unit="percent of the machine's memory",
        within=(0, 100),
        why="A message nearer to the end of the log than this counts as recent.",
    )
    disk_warning_ratio: float = setting(
        0.90,
        "diskSpaceWarningLevelRatio",
        within=(0.01, 1.0),
        aliases=("rocketmq.broker.diskSpaceWarningLevelRatio",),
        why="Sends are refused while more of the disk than this is used. RocketMQ: a JVM property.",
    )
    duplication_enabled: bool = setting(
        False,
        "duplicationEnable",
        effect="later",
        why="Follow the confirm offset of a replicated log.",
    )
    disk_fall_recorded: bool = setting(
        True,
        "diskFallRecorded",
        effect="later",
        why="Count how far behind the end of the log each group reads.",
    )
    append_property_crc: bool = setting(
        False,
        "enabledAppendPropCRC",
        why="""Close each record with a CRC of the whole of it, as RocketMQ 5.2 can (21 bytes more).
        A record's own CRC covers its body only. Every version reads such records.""",
    )
    verify_property_crc: bool = setting(
        False,
        "forceVerifyPropCRC",
        why="""Check that CRC wherever records are checked: in recovery, in queries and look-ups by
        id. Records without one are checked by their body's; RocketMQ 5 takes them for damaged.""",
    )
    multi_dispatch: bool = setting(
        False,
        "enableMultiDispatch",
        why="""Put a message into the further queues that its property INNER_MULTI_DISPATCH names,
        too. Not under batches, retries and delays.""",
    )
    lmq_enabled: bool = setting(
        False,
        "enableLmq",
        why="""Topics whose names begin with %LMQ% have one queue, need not be created and are not
        registered; groups of such names neither. Offsets are then in lmqConsumerOffset.json.""",
    )
    lmq_max_queues: int = setting(
        20_000,
        "maxLmqConsumeQueueNum",
        within=(1, I32_MAX),
        why="Most light queues; a message that needs one more is refused.",
        limit=Limit(
            "light queues",
            "code 1 with the reason",
            'aerobee_store_put_failures_total{reason="lmq_consume_queue_num_exceeded"}',
            bytes_each=2048,
            times=("lmq_enabled",),
        ),
    )
    transient_pool_enabled: bool = setting(
        False,
        "transientStorePoolEnable",
        why="""Append into locked memory, and write that to the files a moment later: appends do not
        wait for the page cache, but a killed process loses that moment, and consumers see messages
        that much later. Needs ASYNC_FLUSH.""",
    )
    transient_pool_buffers: int = setting(
        5,
        "transientStorePoolSize",
        within=(1, 1024),
        why="""Buffers of that pool, each as large as a segment. Two are in use, the others are how
        far the disk may fall behind.""",
        limit=Limit(
            "buffers of the transient pool, locked in memory",
            "sends wait, or are refused with code 2",
            "aerobee_store_transient_buffers_free",
            bytes_each=1,
            times=("commit_log_segment_bytes", "transient_pool_effective"),
        ),
    )
    transient_pool_fail_fast: bool = setting(
        False,
        "fastFailIfNoBufferInStorePool",
        why="""Answer busy when no such buffer is free. Otherwise the segment is written without
        one, as if there were no pool.""",
    )
    warm_segments: bool = setting(
        False,
        "warmMapedFileEnable",
        why="""Touch every page of a new segment before use, and lock it in memory. Reserving blocks
        does most of that; touching makes syncs of the segment slower on common disks.""",
    )
    warm_flush_pages: int = setting(
        4096,
        "flushLeastPagesWhenWarmMapedFile",
        within=(1, I64_MAX),
        why="How often warming syncs on the way, under SYNC_FLUSH.",
    )
