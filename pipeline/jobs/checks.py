"""Refuses arguments before Spark is started: times, directories that are no stores, targets.

A session takes ten seconds to start, and what Spark says of a directory it cannot write to fills a
page; so what can be seen from here is seen first, and said in one line.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aerobee.pipeline.files.directory import find_stores
from aerobee.pipeline.jobs.common.job_result import DAMAGED, USAGE, JobFailed
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.names import HALF_TOPIC, STAGE_TOPIC, WAITING_TOPICS, check_topic_name
from aerobee.store.queues.delay_levels import DelayLevels

if TYPE_CHECKING:
    from aerobee.pipeline.jobs.targets.target import Target

#: Milliseconds of a time as people write it.
ParseTime = Callable[[str], int]

_MASTERS = ("local", "spark://", "yarn", "k8s://")


def check(parsed: argparse.Namespace, parse_time: ParseTime) -> None:
    """Look at the arguments of a job (arguments.py). Raises JobFailed, PipelineError or OSError."""
    if parsed.job == "replay":
        _check_replay(parsed)
    _check_times(getattr(parsed, "begin", None), getattr(parsed, "end", None), parse_time)
    check_master(parsed.master)
    _check_levels(getattr(parsed, "delay_levels", None))
    _check_source(parsed)
    for option in ("to", "output", "plots"):
        target = getattr(parsed, option, None)
        # The `to` of a replay is a topic.
        if target and (option, parsed.job) != ("to", "replay"):
            _check_apart(option, target, parsed.directory)
            _check_target(parsed.job, option, target)
    if parsed.job == "rebuild":
        check_empty(parsed.to)
    if parsed.job == "archive":
        _check_archiving(parsed, parse_time)
    if parsed.job == "traffic":
        _check_pictures(parsed)


def check_master(master: str | None) -> None:
    """Raises JobFailed for a text that is no address of a Spark master."""
    if master and not master.startswith(_MASTERS):
        raise JobFailed(
            f"--master {master}: must be local[N], spark://HOST:PORT, yarn or k8s://...", USAGE
        )


def _check_times(begin: str | None, end: str | None, parse_time: ParseTime) -> None:
    first, last = (parse_time(text) if text else None for text in (begin, end))
    if first is not None and last is not None and first >= last:
        raise JobFailed(f"--begin {begin} is not before --end {end}", USAGE)


def _check_apart(option: str, target: str, directories: Sequence[str]) -> None:
    """Refuse a target in the store that is read, and a store in the archive that is written."""
    for place in directories:
        there, here = _parts_of(target), _parts_of(place)
        if there[: len(here)] == here:
            text = f"--{option} {target} lies in {place}, where nothing is to be changed"
        elif option == "to" and here[: len(there)] == there:
            text = f"{place} lies in --{option} {target}"
        else:
            continue
        raise JobFailed(f"{text}; name a directory apart from it", USAGE)


def _parts_of(place: str) -> list[str]:
    whole = place if "://" in place else f"file://{os.path.realpath(place)}"
    return [part for part in whole.split("/") if part]


def check_empty(target: str) -> None:
    """Raises JobFailed for a directory in which something is."""
    if os.listdir(target):
        raise JobFailed(f"{target} is not empty; rebuild makes a directory of its own")


def _check_archiving(parsed: argparse.Namespace, parse_time: ParseTime) -> None:
    """The first run decides what an archive is for, so a slip of the pen is refused now."""
    from aerobee.pipeline.jobs.common.left_out import NEVER_ARCHIVED
    from aerobee.pipeline.jobs.targets.ledger import ArchiveSelection, Ledger, LedgerError

    times = (parse_time(text) if text else None for text in (parsed.begin, parsed.end))
    selection = ArchiveSelection.of(parsed.topic, *times)
    if parsed.check:
        if not selection.is_everything:
            text = "--check looks at all of it; leave --topic, --begin and --end out"
            raise JobFailed(text, USAGE)
        return
    for topic in selection.topics:
        if topic in NEVER_ARCHIVED:
            raise JobFailed(f"--topic {topic}: what lies there is no message", USAGE)
    place = _opened(parsed.to)
    try:
        is_new = Ledger(place, selection).check_selection(place.name)
    except LedgerError as error:
        raise JobFailed(f"archive {place.name}: {error}", DAMAGED) from error
    known = {topic for topic, _ in find_stores(parsed.directory)[0].queues()} if is_new else set()
    unknown = [topic for topic in selection.topics if topic not in known]
    if known and unknown:
        raise JobFailed(
            f"{parsed.directory[0]} has no queue of {' or '.join(unknown)}; it has queues of "
            f"{', '.join(sorted(known)[:20])}"
        )


def _check_pictures(parsed: argparse.Namespace) -> None:
    """This is said now, because reading the data for the plots takes minutes."""
    from aerobee.pipeline.jobs.common.plots import can_draw

    if parsed.no_pictures and not parsed.plots:
        raise JobFailed("--no-pictures goes with --plots OUT, where index.html is to be", USAGE)
    if parsed.plots and not parsed.no_pictures and not can_draw():
        raise JobFailed(
            "--plots draws with matplotlib, which is not installed: pip install '.[plots]' where "
            "Aerobee's source is, or take --no-pictures for index.html with its tables alone"
        )


def _check_replay(parsed: argparse.Namespace) -> None:
    if not parsed.dry_run and not (parsed.name_servers or os.environ.get("NAMESRV_ADDR")):
        raise JobFailed(
            "replay needs --name-servers (or NAMESRV_ADDR), or --dry-run to send nothing", USAGE
        )
    if parsed.to is not None:
        try:
            check_topic_name(parsed.to)
        except BadRequest as error:
            raise JobFailed(f"--to {parsed.to!r}: {error.remark}", USAGE) from error
    for topic in parsed.topic:
        if topic in (STAGE_TOPIC, HALF_TOPIC):
            raise JobFailed(f"--topic {topic}: what lies there is no message to be sent", USAGE)
        if topic in WAITING_TOPICS and not parsed.to:
            raise JobFailed(
                f"--topic {topic}: name a topic for these messages with --to; where each was "
                "meant for is in its property REAL_TOPIC",
                USAGE,
            )


def _check_levels(text: str | None) -> None:
    try:
        DelayLevels(text or "")
    except ValueError as error:
        raise JobFailed(f"--delay-levels {text!r}: {error}", USAGE) from error


def _check_source(parsed: argparse.Namespace) -> None:
    if parsed.job == "archive" and parsed.check:
        check_archive(parsed.to)
    elif parsed.job == "replay" and parsed.archive:
        if len(parsed.directory) > 1:
            raise JobFailed("replay takes one archive at a time", USAGE)
        check_archive(parsed.directory[0])
    else:
        found = find_stores(parsed.directory)
        if len(found) > 1:
            raise JobFailed(
                f"{found[0].name} and {found[1].name} are two stores; a job takes one at a time"
            )


def check_archive(place: str) -> None:
    """Raises JobFailed when nothing was ever archived there."""
    from aerobee.pipeline.jobs.targets.ledger import FOLDER

    if not _opened(place).exists(FOLDER):
        raise JobFailed(f"{place} is no archive: it has no {FOLDER} directory")


def _check_target(job: str, option: str, target: str) -> None:
    """A directory the job writes to: of this machine, or for some a URI."""
    if "://" not in target:
        check_writable(target)
    elif job == "archive" and option == "to":
        _opened(target)
    elif option != "output":
        raise JobFailed(f"--{option} {target}: must be a directory, not a URI", USAGE)


def _opened(place: str) -> Target:
    from aerobee.pipeline.jobs.targets.target import Target

    try:
        return Target(place)
    except ValueError as error:
        raise JobFailed(f"{place}: {error}", USAGE) from error


def check_writable(target: str) -> None:
    """Raises JobFailed when a directory of this machine cannot be made or written to."""
    try:
        os.makedirs(target, exist_ok=True)
    except OSError as error:
        raise JobFailed(f"cannot make the directory {target}: {error.strerror}") from error
    if not os.access(target, os.W_OK | os.X_OK):
        raise JobFailed(f"cannot write to {target}: Permission denied")
