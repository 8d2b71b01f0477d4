"""Timers go by the monotonic clock: callers of the wall clock are listed here, with the reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
WALL = re.compile(r"now_ms\(\)|now_ns\(\)|\btime\.time\b|\btime\.time_ns\b|\bdatetime\.")
#: Parts of the store and the broker that may, and what for.
ALLOWED = {
    "store/at_rest/backup/backup.py": "the time in a manifest, shown to people",
    "store/at_rest/repair/at_rest.py": "names what it puts aside",
    "store/log/commit_log.py": "store times; how long the put lock is held (FORMAT.md 3.2)",
    "store/disk/files.py": "the clock itself",
    "store/index/index_service.py": "names of index files",
    "store/background/retention/retention.py": "the hour of deletion",
    "store/background/retention/forecast.py": "the hour of deletion",
    "store/store_stats.py": "the day that totals are of",
    "store/disk/steady_time.py": "what messages expire by, held against the monotonic clock",
    "broker/delay/export.py": "which delay level reaches a message's time",
    "broker/requests/administration/group_offsets.py": "shown to people",
    "broker/requests/administration/broker_runtime.py": "shown to people",
    "broker/requests/administration/consumption.py": "shown to people",
    "broker/requests/administration/traffic_statistics.py": "shown to people",
    "broker/core.py": "versions of tables, as the reference",
    "broker/lifecycle/drain.py": "shown to people",
    "broker/monitoring/health_checks.py": "shown to people",
    "broker/monitoring/overview/refusals.py": "shown to people",
    "broker/requests/administration/client_list.py": "shown to people",
    "broker/cluster/replication/ha_status.py": "shown to people",
    "broker/monitoring/lag_metrics.py": "ages of messages",
    "broker/requests/administration/group_lag.py": "ages of messages",
    "broker/messages/pull.py": "the time in a message about an offset that moved",
    "broker/broker_stats.py": "shown to people",
}


def test_only_these_ask_the_wall_clock() -> None:
    asking = {
        str(path.relative_to(ROOT))
        for folder in ("store", "broker")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if WALL.search(path.read_text())
    }
    assert asking == ALLOWED.keys()
