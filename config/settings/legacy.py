"""Keys of RocketMQ that have no counterpart here and never will: thread pools, Netty, DLedger.

They are accepted, checked for their type and reported once at start if they are set, so that a
broker.conf is taken as it is and no operator relies on a setting without effect. One line each:
there is nothing more to say about them.
"""

from typing import ClassVar, TypeVar

from aerobee.config.settings.setting import Section, setting

_POOL = "Java thread pools have no counterpart: requests are handled by one event loop."
_QUEUE = "Queues of the Java thread pools have no counterpart; see the section limits."
_DLEDGER = "DLedger mode is not offered."
_COMMERCIAL = "Belongs to upstream's commercial statistics."
_NETTY = "Netty has no counterpart here."
_MAP_BITS = (
    "RocketMQ's broker replaces it by the length that expectConsumerNumUseFilter and "
    "maxErrorRateOfBloomFilter give, and so does this one."
)
_UNUSED = "RocketMQ itself does not use it."
_DLEDGER_REFUSED = (
    "DLedger mode is not offered: its log is another format; run a plain master on a plain store"
)

_DERIVED = "Derived from storePathRootDir, here and in RocketMQ, whose example files set it."

T = TypeVar("T", bool, int, str)


def _idle(default: T, rocketmq_key: str, why: str, **refused: str) -> T:
    """A key without effect; `refused` names values the start stops at (`true="..."`)."""
    return setting(default, rocketmq_key, why=why, effect="never", refused=refused)


# Paths that many example files set and no broker reads: what they name lies below the store.
DERIVED_PATHS = frozenset(
    ("store_path_consume_queue", "store_path_index", "store_path_checkpoint", "store_path_abort")
)


class LegacySettings(Section):
    """Accepted from broker.conf, without effect."""

    section: ClassVar[str] = "legacy"

    store_path_consume_queue: str = _idle("", "storePathConsumeQueue", _DERIVED)
    store_path_index: str = _idle("", "storePathIndex", _DERIVED)
    store_path_checkpoint: str = _idle("", "storeCheckpoint", _DERIVED)
    store_path_abort: str = _idle("", "abortFile", _DERIVED)
    store_path_dledger: str = _idle("", "storePathDLedgerCommitLog", _DLEDGER)
    dledger_enabled: bool = _idle(False, "enableDLegerCommitLog", _DLEDGER, true=_DLEDGER_REFUSED)
    dledger_group: str = _idle("", "dLegerGroup", _DLEDGER)
    dledger_peers: str = _idle("", "dLegerPeers", _DLEDGER)
    dledger_self_id: str = _idle("", "dLegerSelfId", _DLEDGER)
    dledger_preferred_leader: str = _idle("", "preferredLeaderId", _DLEDGER)
    dledger_batch_push: bool = _idle(False, "enableBatchPush", _DLEDGER)
    put_index_high_water: int = _idle(600_000, "putMsgIndexHightWater", _UNUSED)
    reentrant_put_lock: bool = _idle(
        True,
        "useReentrantLockWhenPutMessage",
        "There is one put lock, and it is held for microseconds.",
    )
    debug_lock: bool = _idle(
        False, "debugLockEnable", "The append histogram shows a lock held too long."
    )
    offset_history_interval_ms: int = _idle(60_000, "flushConsumerOffsetHistoryInterval", _UNUSED)
    high_speed_mode: bool = _idle(False, "highSpeedMode", _UNUSED)
    max_delay_time: int = _idle(40, "maxDelayTime", _UNUSED)
    send_threads: int = _idle(4, "sendMessageThreadPoolNums", _POOL)
    put_future_threads: int = _idle(4, "putMessageFutureThreadPoolNums", _POOL)
    pull_threads: int = _idle(16, "pullMessageThreadPoolNums", _POOL)
    reply_threads: int = _idle(16, "processReplyMessageThreadPoolNums", _POOL)
    query_threads: int = _idle(8, "queryMessageThreadPoolNums", _POOL)
    admin_threads: int = _idle(16, "adminBrokerThreadPoolNums", _POOL)
    client_manage_threads: int = _idle(32, "clientManageThreadPoolNums", _POOL)
    consumer_manage_threads: int = _idle(32, "consumerManageThreadPoolNums", _POOL)
    heartbeat_threads: int = _idle(4, "heartbeatThreadPoolNums", _POOL)
    end_transaction_threads: int = _idle(16, "endTransactionThreadPoolNums", _POOL)
    send_queue_capacity: int = _idle(10_000, "sendThreadPoolQueueCapacity", _QUEUE)
    put_queue_capacity: int = _idle(10_000, "putThreadPoolQueueCapacity", _QUEUE)
    reply_queue_capacity: int = _idle(10_000, "replyThreadPoolQueueCapacity", _QUEUE)
    query_queue_capacity: int = _idle(20_000, "queryThreadPoolQueueCapacity", _QUEUE)
    client_manager_queue_capacity: int = _idle(
        1_000_000, "clientManagerThreadPoolQueueCapacity", _QUEUE
    )
    consumer_manager_queue_capacity: int = _idle(
        1_000_000, "consumerManagerThreadPoolQueueCapacity", _QUEUE
    )
    heartbeat_queue_capacity: int = _idle(50_000, "heartbeatThreadPoolQueueCapacity", _QUEUE)
    end_transaction_queue_capacity: int = _idle(100_000, "endTransactionPoolQueueCapacity", _QUEUE)
    address_server: bool = _idle(
        False, "fetchNamesrvAddrByAddressServer", "Name servers are listed in broker.name_servers."
    )
    filter_servers: int = _idle(0, "filterServerNums", "Filter servers ran code sent by clients.")
    commercial: bool = _idle(True, "commercialEnable", _COMMERCIAL)
    commercial_timer_count: int = _idle(1, "commercialTimerCount", _COMMERCIAL)
    commercial_trans_count: int = _idle(1, "commercialTransCount", _COMMERCIAL)
    commercial_big_count: int = _idle(1, "commercialBigCount", _COMMERCIAL)
    commercial_base_count: int = _idle(1, "commercialBaseCount", _COMMERCIAL)
    disable_slow_consumers: bool = _idle(
        False,
        "disableConsumeIfConsumerReadSlowly",
        "Lagging consumers are shown by the lag metrics, not cut off.",
    )
    slow_consumer_bytes: int = _idle(
        17_179_869_184,
        "consumerFallbehindThreshold",
        "Belongs to disableConsumeIfConsumerReadSlowly.",
    )
    consume_queue_ext_bitmap_bits: int = _idle(64, "bitMapLengthConsumeQueueExt", _MAP_BITS)
    detail_stat: bool = _idle(
        True, "enableDetailStat", "Counting by queue is cheap enough to be always on."
    )
    delete_unused_stats: bool = _idle(
        False, "autoDeleteUnusedStats", "Counters go when their topic or group is deleted."
    )
    isolate_log: bool = _idle(False, "isolateLogEnable", "There is one log.")
    netty_worker_threads: int = _idle(8, "serverWorkerThreads", _NETTY)
    netty_callback_threads: int = _idle(0, "serverCallbackExecutorThreads", _NETTY)
    netty_selector_threads: int = _idle(3, "serverSelectorThreads", _NETTY)
    netty_oneway_semaphore: int = _idle(256, "serverOnewaySemaphoreValue", _NETTY)
    netty_async_semaphore: int = _idle(64, "serverAsyncSemaphoreValue", _NETTY)
    netty_backlog: int = _idle(1024, "serverSocketBacklog", "Fixed at 1,024 here.")
    netty_send_buffer: int = _idle(
        0,
        "serverSocketSndBufSize",
        "Socket buffers are left to the system, which sizes them by need.",
    )
    netty_receive_buffer: int = _idle(
        0,
        "serverSocketRcvBufSize",
        "Socket buffers are left to the system, which sizes them by need.",
    )
    netty_low_water: int = _idle(
        0,
        "writeBufferLowWaterMark",
        "Reading goes on at a fixed share of limits.outbound_high_water_bytes.",
    )
    netty_pooled_buffers: bool = _idle(True, "serverPooledByteBufAllocatorEnable", _NETTY)
    netty_epoll: bool = _idle(False, "useEpollNativeSelector", _NETTY)
