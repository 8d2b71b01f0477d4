"""`aerobee store retention`: what it tells people and scripts, and that it changes nothing."""

import json
import re
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.unit.cli.store_support import store, store_process
from tests.unit.store.background.retention.retention_support import (
    HOUR_MS,
    SEGMENT,
    Hours,
    fill_segments,
    open_store,
)
from tests.unit.store.support import tree

DAY_MS = 24 * HOUR_MS
# These hold on any disk that the tests run on.
ROOMY = (
    *("--set", "retention.disk_max_used_percent=95"),
    *("--set", "retention.disk_force_ratio=1.0"),
    *("--set", "store.disk_warning_ratio=1.0"),
)
QUIET = ("--set", "retention.delete_hours=", *ROOMY)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six segments, one a day, the last one now; a group that has not consumed much."""
    root = tmp_path / "store"
    clock = Hours(time.time_ns() // 1_000_000 - 6 * DAY_MS)
    made = open_store(root, clock)
    for number in range(6):
        fill_segments(made, number + 1)
        clock.time_ms += DAY_MS
    assert made.close()
    (root / "config").mkdir()
    offsets = {"offsetTable": {"Orders@slow": {"0": 7}, "Orders@done": {"0": 10_000}}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    return root


def test_people_get_tables_of_disks_segments_and_groups(root: Path) -> None:
    before = tree(root, ".")
    hours = ";".join(map(str, range(24)))
    done = store_process("retention", root, "--set", f"retention.delete_hours={hours}", *ROOMY)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("messages are kept 72 h and deleted at 00:00, 01:00")
    assert "above 95% of the disk expired ones go at once" in lines[1]
    assert f"{root}/commitlog" in done.out
    rows = [line for line in lines if line.startswith("0000")]
    assert len(rows) == 6
    assert [row.endswith("now (time)") for row in rows] == [True, True, True, False, False, False]
    assert rows[-1].endswith("is written, stays")
    assert "now        3 segments, 12.0 KiB (triggered by time)" in lines
    (row,) = [line for line in lines if line.startswith("slow")]
    assert row.split()[:4] == ["slow", "Orders", "0", "7"]
    assert "done" not in done.out
    assert tree(root, ".") == before


def test_an_hour_at_which_nothing_goes_is_named_first(root: Path) -> None:
    # This hour cannot begin while the test runs.
    hour = (datetime.now().hour + 2) % 24
    hours = ("--set", f"retention.delete_hours={hour}", "--set", "fileReservedTime=1000")
    out = store("retention", root, *hours, *ROOMY).out
    (line,) = [line for line in out.splitlines() if line.startswith("next hour")]
    assert re.fullmatch(
        rf"next hour  nothing goes at \d{{4}}-\d\d-\d\d {hour:02}:00: the next one has not expired",
        line,
    )


def test_scripts_get_json_with_all_of_it(root: Path) -> None:
    report = store("retention", root, *QUIET, "--json").json
    assert report["triggers"] == []
    assert report["now"]["segments"] == []
    assert report["now"]["stopped_by"] == "neither the hour nor a disk triggers deletion"
    assert report["next_hour"] is None
    assert [one["start"] for one in report["on_request"]["segments"]] == [0, SEGMENT, 2 * SEGMENT]
    assert report["on_request"]["log_begins_at"] == 3 * SEGMENT
    assert report["rules"]["retention_ms"] == 72 * HOUR_MS
    assert len(report["segments"]) == 6
    first = report["segments"][0]
    assert first["expires_ms"] == first["last_stored_ms"] + 72 * HOUR_MS
    assert first["time_from"] == "message"
    assert report["segments"][-1]["expires_ms"] is None
    (group,) = report["groups"]
    assert (group["group"], group["committed"], group["loses_now"]) == ("slow", 7, 0)
    assert {disk["holds"] for disk in report["disks"]} == {"commit log", "consume queues"}


def test_long_lists_are_cut_in_the_middle_unless_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.cli.store.retention._SHOWN", 4)
    shown = [line for line in store("retention", root, *QUIET).out.splitlines() if "0000" in line]
    assert [line.split()[0] for line in shown if line.startswith("0000")] == [
        f"{start:020d}" for start in (0, SEGMENT, 5 * SEGMENT)
    ]
    everything = store("retention", root, *QUIET, "--all").out
    assert len([line for line in everything.splitlines() if line.startswith("0000")]) == 6


def test_it_says_that_these_are_the_defaults_when_no_settings_are_given(root: Path) -> None:
    done = store("retention", root)
    assert "default settings" in done.err
    assert store("retention", root, *QUIET).err == ""


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    done = store_process("retention", tmp_path / "absent")
    assert done.code == 3
    assert "does not exist" in done.err
