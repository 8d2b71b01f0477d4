"""`aerobee store retention`: what deletion would take, when, why, and who still needs it.

A dry run: it reads, also while a broker runs on the store, and changes nothing. The settings are
those of `--config`; without one the defaults are shown, which may not be what the broker runs with.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from aerobee.cli.printing.output import OK, print_json, print_table, say, show
from aerobee.cli.printing.times import time_text
from aerobee.cli.store.opened import on_store, settings_of
from aerobee.pipeline.jobs.common.job_result import size_text
from aerobee.store.background.retention.deletion_plan import MOST_A_RUN, RetentionPlan
from aerobee.store.background.retention.forecast import DiskForecast, Forecast, forecast
from aerobee.store.background.retention.segment_times import FILE

_SHOWN: Final = 20
# If no option is given, the broker's own settings were perhaps forgotten.
_RULES: Final = frozenset(
    {
        "retention_hours", "delete_hours", "disk_max_used_percent", "disk_force_ratio",
        "disk_warning_ratio", "clean_forcibly",
    }
)  # fmt: skip


@on_store
def show_retention(parsed: argparse.Namespace) -> int:
    """Print the forecast for a store directory."""
    settings, given = settings_of(parsed)
    found = forecast(settings, given)
    if parsed.json:
        print_json(_fields(settings.store_path, found))
        return OK
    if not parsed.config and not given & _RULES:
        say("these are the default settings; name the broker's own with --config")
    most = sys.maxsize if parsed.all else _SHOWN
    _print_rules(found)
    _print_disks(found)
    _print_segments(found, most)
    _print_waves(found)
    _print_groups(found, most)
    for note in found.notes:
        show(f"note: {note}")
    return OK


# --- for people -----------------------------------------------------------------------------------


def _print_rules(found: Forecast) -> None:
    rules = found.rules
    hours = ", ".join(f"{hour:02}:00" for hour in sorted(rules.delete_hours)) or "no hour"
    show(f"messages are kept {rules.retention_ms // 3_600_000} h and deleted at {hours}")
    forced = "" if rules.clean_forcibly else " (off: cleanFileForciblyEnable)"
    show(
        f"above {rules.space_limit:.0%} of the disk expired ones go at once, above "
        f"{rules.force_limit:.0%} the oldest of all{forced}; above {rules.warning_ratio:.0%} sends "
        "are refused"
    )
    show("")


def _print_disks(found: Forecast) -> None:
    rules = found.rules
    levels = (rules.space_limit, rules.force_limit, rules.warning_ratio)
    print_table(
        ("disk of", "used", "free", *(f"until {level:.0%}" for level in levels)),
        [
            (
                disk.path,
                f"{disk.space.used_ratio:.1%}",
                size_text(disk.space.free_bytes),
                *(_room(disk, level) for level in levels),
            )
            for disk in found.disks
        ],
    )
    show("")


def _room(disk: DiskForecast, level: float) -> str:
    room = disk.room_to(level)
    return size_text(room) if room > 0 else f"passed by {size_text(-room)}"


def _print_segments(found: Forecast, most: int) -> None:
    goes = _fates(found)
    rows = [
        (
            os.path.basename(one.place.path),
            "" if one.last is None else time_text(one.last.time_ms)[:19] + _mark(one.last.source),
            "" if one.expires_ms is None else time_text(one.expires_ms)[:19],
            "is written, stays" if one.last is None else goes.get(one.place.start, ""),
        )
        for one in found.segments
    ]
    print_table(("segment", "last message", "expires", "goes"), _head_and_tail(rows, most))
    if any(one.last is not None and one.last.source == FILE for one in found.segments):
        show("* no message could be read there: the file's own time")
    kept = f"{_segments(len(found.segments))} of {size_text(found.segment_bytes)}"
    show(f"{kept}, {found.made_ahead} more made ahead" if found.made_ahead else kept)
    show("")


def _mark(source: str) -> str:
    return "*" if source == FILE else ""


def _head_and_tail(rows: Sequence[tuple[str, ...]], most: int) -> list[tuple[str, ...]]:
    if len(rows) <= most:
        return list(rows)
    left_out = len(rows) - most + 1
    return [*rows[: most - 2], ("...", f"{left_out} more (--all)", "", ""), rows[-1]]


def _fates(found: Forecast) -> dict[int, str]:
    """By start: the time and the reason of a segment's deletion, if they can be known."""
    fates: dict[int, str] = {}
    for one in found.now.doomed:
        fates[one.start] = f"now ({one.reason})"
    if found.next is not None:
        for one in found.next.doomed:
            fates.setdefault(one.start, f"at {time_text(found.next.now_ms)[:16]}")
    return fates


def _print_waves(found: Forecast) -> None:
    triggers = " and ".join(found.now.verdict.triggers)
    forced = ", forced: what has not expired goes too" if found.now.verdict.forced else ""
    why = f" (triggered by {triggers}{forced})" if triggers else ""
    show(f"now        {_wave_text(found.now)}{why}")
    show(f"on request {_wave_text(found.on_request)} (mqadmin deleteExpiredCommitLog)")
    if found.next is not None:
        show(f"next hour  {_wave_text(found.next, f' at {time_text(found.next.now_ms)[:16]}')}")
    if found.rules.clean_forcibly:
        pressed = found.under_pressure
        show(
            f"full disk  above {found.rules.force_limit:.0%} the oldest go whatever their age, at "
            f"most {MOST_A_RUN} a run, until it is enough: {_first_text(pressed)}"
        )
    show("")


def _wave_text(wave: RetentionPlan, when: str = "") -> str:
    if not wave.doomed:
        return f"nothing goes{when}: {wave.stopped_by}"
    return f"{_segments(len(wave.doomed))}, {size_text(wave.bytes)}{when}"


def _segments(number: int) -> str:
    return "1 segment" if number == 1 else f"{number} segments"


def _first_text(wave: RetentionPlan) -> str:
    if not wave.doomed:
        return "no segment may go"
    first, last = (os.path.basename(wave.doomed[at].path) for at in (0, -1))
    return f"{first} first" if first == last else f"{first} first, then up to {last}"


def _print_groups(found: Forecast, most: int) -> None:
    losing = sorted(found.groups, key=lambda one: (-one.loses_by_next_hour, -one.behind))
    losing = [one for one in losing if one.loses_by_next_hour]
    if not losing:
        behind = len({one.group for one in found.groups})
        show(f"no group needs what goes now or at the next hour; {behind} are behind")
        return
    show("groups that have not consumed what goes:")
    print_table(
        ("group", "topic", "queue", "stands at", "behind", "loses now", "loses by next hour"),
        losing[:most],
    )
    if len(losing) > most:
        show(f"... and {len(losing) - most} more (--all, --json)")


# --- for scripts ----------------------------------------------------------------------------------


def _fields(root: str, found: Forecast) -> dict[str, Any]:
    """The whole forecast for scripts; these names do not change."""
    rules = found.rules
    return {
        "directory": root,
        "now_ms": found.now_ms,
        "rules": {
            "retention_ms": rules.retention_ms,
            "delete_hours": sorted(rules.delete_hours),
            "space_ratio": rules.space_limit,
            "force_ratio": rules.force_limit,
            "refusal_ratio": rules.warning_ratio,
            "clean_forcibly": rules.clean_forcibly,
        },
        "disks": [_disk_fields(disk, rules.force_limit) for disk in found.disks],
        "triggers": list(found.now.verdict.triggers),
        "forced": found.now.verdict.forced,
        "segment_bytes": found.segment_bytes,
        "segments_made_ahead": found.made_ahead,
        "segments": [
            {
                "path": one.place.path,
                "start": one.place.start,
                "end": one.place.end,
                "last_stored_ms": None if one.last is None else one.last.time_ms,
                "time_from": None if one.last is None else one.last.source,
                "expires_ms": one.expires_ms,
            }
            for one in found.segments
        ],
        "now": _wave_fields(found.now),
        "on_request": _wave_fields(found.on_request),
        "next_hour": None if found.next is None else _wave_fields(found.next),
        "under_pressure": _wave_fields(found.under_pressure),
        "groups": [one._asdict() for one in found.groups],
        "notes": list(found.notes),
    }


def _disk_fields(disk: DiskForecast, force_limit: float) -> dict[str, Any]:
    return {
        "path": disk.path,
        "holds": "commit log" if disk.is_log else "consume queues",
        "used_ratio": round(disk.space.used_ratio, 6),
        "used_bytes": disk.space.used_bytes,
        "free_bytes": disk.space.free_bytes,
        "bytes_until_forced": disk.room_to(force_limit),
    }


def _wave_fields(wave: RetentionPlan) -> dict[str, Any]:
    return {
        "at_ms": wave.now_ms,
        "segments": [{"start": one.start, "reason": one.reason} for one in wave.doomed],
        "bytes": wave.bytes,
        "log_begins_at": wave.new_min,
        "stopped_by": wave.stopped_by,
    }
