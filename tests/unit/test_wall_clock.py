"""Timers go by the monotonic clock: who asks for the wall clock is listed here, with the reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL = re.compile(r"now_ms\(\)|now_ns\(\)|\btime\.time\b|\btime\.time_ns\b|\bdatetime\.")
#: Parts of the store and the broker that may, and what for.
ALLOWED = {
    "store/mending/at_rest.py": "names what it puts aside",
    "store/commit_log.py": "store times; how long the put lock is held, in bounds (spec 3.2)",
    "store/files.py": "the clock itself",
    "store/index_names.py": "names of index files",
    "store/retention.py": "the hour of deletion",
    "store/retention_forecast.py": "the hour of deletion",
    "store/stats_service.py": "the day that totals are of",
    "store/steady_time.py": "what messages expire by, held against the monotonic clock",
    "broker/admin_runtime.py": "shown to people",
    "broker/admin_stats.py": "shown to people",
    "broker/admin_traffic.py": "shown to people",
    "broker/core.py": "versions of tables, as the reference",
    "broker/health.py": "shown to people",
    "broker/metrics_store.py": "ages of messages",
    "broker/offset_moved.py": "the time in a message",
    "broker/stats.py": "shown to people",
}


def test_only_these_ask_the_wall_clock() -> None:
    asking = {
        str(path.relative_to(ROOT))
        for folder in ("store", "broker")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if WALL.search(path.read_text())
    }
    assert asking == ALLOWED.keys()
