"""GET_BROKER_RUNTIME_INFO and GET_BROKER_CONFIG: what mqadmin and dashboards show of a broker
(protocol/WIRE.md 3.5, 4.8).

The runtime table has every key of the reference, because tools look them up without asking whether
they are there. What has no counterpart here (thread pools and their queues) says 0. The
configuration is the settings under RocketMQ's names, those marked secret left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import SETTINGS, Settings
from aerobee.protocol.bodies.common import encode_kv_table
from aerobee.protocol.codes import PROTOCOL_VERSION, PROTOCOL_VERSION_NAME, RequestCode
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.fastjson import dumps, text_of
from aerobee.protocol.message.record_layout import SYS_FLAG_POSITION, store_timestamp_position
from aerobee.remoting.connections.connection import Connection
from aerobee.store.disk.files import Files
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.transient_pool import NO_POOL
from aerobee.store.store_stats import PUT_RANGES, rate_text

# Names that the reference's tools look up and no setting has here: whether the broker's own
# connections, to its name servers, use TLS (`mqadmin exportConfigs` fails without it); and the
# threads of those, as many as processors, which `mqadmin exportMetrics` prints.
_USE_TLS = "useTLS"
_WITHOUT_SETTING = {"clientCallbackExecutorThreads": str(len(os.sched_getaffinity(0)))}

# Queues of thread pools that do not exist here, by the names their sizes have.
_POOLS = ("sendThreadPool", "pullThreadPool", "queryThreadPool")


class RuntimeRequests:
    """Serves administrators. Loop thread only."""

    def __init__(
        self,
        settings: Settings,
        topics: TopicTable,
        store: MessageStore,
        stats: BrokerStats,
        delays: ScheduleMessageService,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._store = store
        self._stats = stats
        self._delays = delays

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_BROKER_CONFIG: self.config,
        }

    def runtime_info(self, _connection: Connection, command: Command) -> bytes:
        """The runtime table."""
        body = encode_kv_table(self.runtime_table())
        return encode_success(command, body)

    def config(self, _connection: Connection, command: Command) -> bytes:
        """The settings as `broker.conf` lines, with the topic table's version in the header."""
        body = "".join(f"{line}\n" for line in config_lines(self._settings)).encode()
        ext = {"version": dumps(self._topics.data_version.to_json()).decode()}
        return encode_success(command, body, ext)

    def runtime_table(self) -> dict[str, str]:
        """Every key of the reference's table with its text."""
        return {
            **self._versions(),
            **self._put_figures(),
            **self._rates_and_totals(),
            **self._pools(),
            **self._log_figures(),
            **self._disks(),
            **self._delay_levels(),
        }

    def _versions(self) -> dict[str, str]:
        started_ms = self._stats.started_ms
        return {
            "bootTimestamp": str(started_ms),
            "brokerVersion": str(PROTOCOL_VERSION),
            "brokerVersionDesc": PROTOCOL_VERSION_NAME,
            "runtime": _duration_text(max(_now_ms() - started_ms, 0) // 1000),
            "startAcceptSendRequestTimeStamp": str(self._settings.start_accept_send_timestamp_ms),
        }

    def _put_figures(self) -> dict[str, str]:
        stats, lately = self._store.stats, self._store.stats_service
        messages = max(stats.appended_messages, 1)
        ranges = zip(PUT_RANGES, lately.put_ranges(), strict=True)
        return {
            "getMessageEntireTimeMax": str(round(self._stats.get_time_max_s * 1000)),
            # How long the put lock has been held: not at all, puts are on this very thread.
            "pageCacheLockTimeMills": "0",
            "putLatency99": f"{lately.put_percentile_ms(0.99):.2f}",
            "putLatency999": f"{lately.put_percentile_ms(0.999):.2f}",
            "putMessageAverageSize": text_of(stats.appended_bytes / messages),
            "putMessageDistributeTime": "".join([f"[{name}]:{count} " for name, count in ranges]),
            "putMessageEntireTimeMax": str(round(stats.put_times.max_s * 1000)),
            "putMessageFailedTimes": str(sum(stats.put_failures.values())),
            "putMessageSizeTotal": str(stats.appended_bytes),
            # 1 without messages: tools divide by it.
            "putMessageTimesTotal": str(messages),
        }

    def _rates_and_totals(self) -> dict[str, str]:
        lately = self._store.stats_service
        rates, totals = lately.rates(), lately.totals
        today, yesterday = lately.this_morning, lately.yesterday_morning
        return {
            "getFoundTps": rate_text(rates.get_found),
            "getMissTps": rate_text(rates.get_miss),
            "getTotalTps": rate_text(rates.get_total),
            "getTransferedTps": rate_text(rates.get_transferred),
            "msgGetTotalTodayMorning": str(today.transferred),
            "msgGetTotalTodayNow": str(totals.transferred),
            "msgGetTotalYesterdayMorning": str(yesterday.transferred),
            "msgPutTotalTodayMorning": str(today.put),
            "msgPutTotalTodayNow": str(totals.put),
            "msgPutTotalYesterdayMorning": str(yesterday.put),
            "putTps": rate_text(rates.put),
        }

    def _pools(self) -> dict[str, str]:
        settings = self._settings
        capacities = (
            settings.send_queue_capacity,
            settings.held_pulls,
            settings.query_queue_capacity,
        )
        table = {
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": str(settings.end_transaction_queue_capacity),
            "dispatchMaxBuffer": "0",
        }
        for pool, capacity in zip(_POOLS, capacities, strict=True):
            table[f"{pool}QueueSize"] = "0"
            table[f"{pool}QueueCapacity"] = str(capacity)
            table[f"{pool}QueueHeadWaitTimeMills"] = "0"
        return table

    def _log_figures(self) -> dict[str, str]:
        store = self._store
        free_buffers = store.free_buffers
        table = {
            "commitLogMaxOffset": str(store.written),
            "commitLogMinOffset": str(store.min_log_offset),
            "dispatchBehindBytes": str(max(store.written - store.dispatched, 0)),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "remainHowManyDataToFlush": size_text(max(store.written - store.durable, 0)),
            "remainTransientStoreBufferNumbs": str(free_buffers),
        }
        if free_buffers != NO_POOL:
            table["remainHowManyDataToCommit"] = size_text(max(store.written - store.committed, 0))
        return table

    def _delay_levels(self) -> dict[str, str]:
        """How far each level with messages has been given out, and where it ends."""
        return {
            f"scheduleMessageOffset_{level.level}": f"{level.offset},{level.end}"
            for level in self._delays.level_stats()
        }

    def _earliest_ms(self) -> int:
        """Store time of the log's first record, -1 without one."""
        store = self._store
        if store.written <= store.min_log_offset:
            return -1
        record = store.reader.record_at(store.min_log_offset)
        if record is None:
            return -1
        sys_flag = int.from_bytes(record[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big")
        position = store_timestamp_position(sys_flag)
        return int.from_bytes(record[position : position + 8], "big")

    def _disks(self) -> dict[str, str]:
        settings = self._settings
        directories = settings.commit_log_directories
        disks = [os.statvfs(_existing(path)) for path in directories]
        distinct = {disk.f_fsid: disk for disk in disks}.values()
        total = sum(disk.f_blocks * disk.f_frsize for disk in distinct)
        free = sum(disk.f_bavail * disk.f_frsize for disk in distinct)
        ratios = {path: _used_ratio(path) for path in directories}
        queue_ratio = _used_ratio(os.path.join(settings.store_path, "consumequeue"))
        return {
            "commitLogDirCapacity": f"Total : {size_text(total)}, Free : {size_text(free)}.",
            # The emptiest disk counts: while it has room, sends go on.
            "commitLogDiskRatio": text_of(min(ratios.values())),
            **{f"commitLogDiskRatio_{path}": text_of(ratio) for path, ratio in ratios.items()},
            "consumeQueueDiskRatio": text_of(queue_ratio),
        }


def config_lines(settings: Settings) -> Iterator[str]:
    """`key=value` for each setting that has a RocketMQ name and is no secret, sorted by key."""
    values = (
        _WITHOUT_SETTING
        | {_USE_TLS: text_of(settings.tls_outgoing)}
        | {
            setting.rocketmq_key: text_of(settings.value_of(setting)).replace("\\", "\\\\")
            for setting in SETTINGS
            if setting.rocketmq_key and not setting.secret
        }
    )
    for key, value in sorted(values.items()):
        yield f"{key}={value}"


def size_text(size: int) -> str:
    """`0 B`, `1.5 KiB`, ... as the reference writes sizes."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in "KMGTPE":
        value /= 1024
        if value < 1024 or unit == "E":
            break
    return f"{value:.1f} {unit}iB"


def _duration_text(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _existing(path: str) -> str:
    """`path`, or the nearest directory above it that is there and would hold it."""
    while not os.path.exists(path):
        path = os.path.dirname(path) or "/"
    return path


def _used_ratio(path: str) -> float:
    return round(Files().used_ratio(_existing(path)), 4)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
