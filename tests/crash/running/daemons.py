"""The daemon of the crash tests: the real command with a small store, or one broken on purpose."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from aerobee.config.model import Settings
from tests.service.kit import Served

_PROGRAM = Path(__file__).with_name("broken_daemon.py")
#: The least the settings allow, so that files roll over all the time, and quick services.
SMALL: dict[str, int] = {
    "commit_log_segment_bytes": 65_536,
    "consume_queue_segment_bytes": 400,
    "index_slots": 20,
    "index_entries": 60,
    "consume_queue_flush_interval_ms": 30,
    "consume_queue_flush_least_pages": 0,
    "consume_queue_flush_thorough_interval_ms": 200,
    "flush_interval_ms": 50,
    "flush_thorough_interval_ms": 300,
}
_QUICK = ("broker.flush_consumer_offset_interval_ms=100", "retention.clean_interval_ms=100")


def start_daemon(
    folder: Path,
    store: Path,
    flush: str,
    control: str = "",
    more: Mapping[str, object] | None = None,
    **options: object,
) -> Served:
    """A daemon on `store`, its log below `folder`; `control` names what is broken in it, `more` are
    settings by their full keys."""
    program = [sys.executable, str(_PROGRAM), control] if control else None
    settings = [f"store.{name}={value}" for name, value in SMALL.items()]
    settings += [f"store.flush_disk_type={flush}", *_QUICK]
    settings += [f"{key}={value}" for key, value in (more or {}).items()]
    arguments = [word for setting in settings for word in ("--set", setting)]
    return Served(folder, *arguments, store=store, program=program, **options)  # type: ignore[arg-type]


def settings_for(store: Path, flush: str) -> Settings:
    """The daemon's store settings, for opening it in this process; no disk is too full for that."""
    return Settings.for_tests(
        store_path=str(store), flush_disk_type=flush, disk_warning_ratio=1.0, **SMALL
    )
