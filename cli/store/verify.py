"""`aerobee store verify`: is a store sound, and if not, what is wrong, what follows, what to do."""

import argparse
import os
import sys
from typing import Any, Final

from aerobee.cli.output import print_json, printable
from aerobee.cli.progress import Progress
from aerobee.cli.store.access import DAMAGED, SOUND, below, locked_to_read, on_store, settings_of
from aerobee.cli.times import time_text
from aerobee.pipeline.jobs.result import size_text
from aerobee.store.audit.verify import verify
from aerobee.store.inspect.kinds import KINDS, Level
from aerobee.store.inspect.report import Finding, Report

_SHOWN_PER_KIND: Final = 10
_COLOURS: Final = {Level.DAMAGE: "\x1b[1;31m", Level.WARNING: "\x1b[33m", Level.NOTE: "\x1b[36m"}
_PLAIN: Final = "\x1b[0m"


@on_store
def verify_store(parsed: argparse.Namespace) -> int:
    """Check a store; exit code 0 when it is sound, 1 when it is damaged."""
    settings, given = settings_of(parsed)
    with locked_to_read(settings), Progress(shown=not parsed.quiet) as progress:
        report = verify(settings, given, progress=progress)
    if parsed.json:
        print_json(json_report(report))
    else:
        print_report(report, shown_per_kind=sys.maxsize if parsed.all else _SHOWN_PER_KIND)
    return SOUND if report.sound else DAMAGED


def print_report(report: Report, *, shown_per_kind: int = _SHOWN_PER_KIND) -> None:
    """The whole report for people: what was found, then what was read, then the verdict."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for kind in dict.fromkeys(finding.kind for finding in report.findings):
        _print_kind(report, kind, shown_per_kind, colour=colour)
    for line in _summary(report):
        print(line)
    print(verdict(report))


def verdict(report: Report) -> str:
    """One line: sound or damaged, and how much of each level."""
    findings = report.findings
    damage, warnings = findings.count(Level.DAMAGE), findings.count(Level.WARNING)
    more = f", {warnings} warnings" if warnings else ""
    if report.sound:
        return f"{report.root} is SOUND{more}"
    return f"{report.root} is DAMAGED: {damage} findings{more}"


def _print_kind(report: Report, kind: str, most: int, *, colour: bool) -> None:
    described, count = KINDS[kind], report.findings.counts[kind]
    level = described.level.value.upper()
    if colour:
        level = f"{_COLOURS[described.level]}{level}{_PLAIN}"
    print(f"{level}  {kind}" + (f"  ({count} times)" if count > 1 else ""))
    found = report.findings.of(kind)
    for finding in found[:most]:
        print(f"  {printable(_place(report.root, finding))}: {printable(finding.what)}")
    if count > min(most, len(found)):
        print(f"  ... and {count - min(most, len(found))} more (--all, --json)")
    print(f"  means  {described.consequence}")
    print(f"  do     {described.remedy}")
    print()


def _place(root: str, finding: Finding) -> str:
    path = below(root, finding.path)
    return path if finding.position is None else f"{path} byte {finding.position}"


def _summary(report: Report) -> list[str]:
    counts, sizes = report.counts, report.sizes
    times = ""
    if counts.first_store_ms:
        first, last = time_text(counts.first_store_ms), time_text(counts.last_store_ms)
        times = f", stored {first} to {last}"
    beside = [
        f", {count} {what}"
        for count, what in (
            (counts.half_messages, "half messages"),
            (counts.rollbacks, "rollbacks"),
            (counts.fillers, "fillers"),
            (counts.lost_bytes, "bytes lost"),
        )
        if count
    ]
    rate = counts.bytes_read / report.seconds if report.seconds else 0
    return [
        f"log     {counts.log_start} to {counts.log_end} in {counts.segments} files of "
        f"{size_text(sizes.segment_bytes)} ({sizes.origins['segment']})",
        f"        {counts.messages} messages{''.join(beside)}{times}",
        f"queues  {counts.queues} with {counts.units} entries, files of {sizes.queue_bytes} bytes "
        f"({sizes.origins['queue']})",
        f"index   {counts.index_files} files with {counts.index_entries} keys, {sizes.index_slots} "
        f"slots, {sizes.index_entries} entries a file ({sizes.origins['index']})",
        f"tables  {counts.config_files} files, {counts.consumer_offsets} consumer offsets",
        f"read    {size_text(counts.bytes_read)} in {report.seconds:.1f} s, "
        f"{size_text(int(rate))}/s",
    ]


def json_report(report: Report) -> dict[str, Any]:
    """The whole report for scripts; these names do not change."""
    findings = report.findings
    return {
        "directory": report.root,
        "sound": report.sound,
        "clean_stop": report.clean_stop,
        "levels": {level.value: findings.count(level) for level in Level},
        "kinds": findings.counts,
        "findings": [json_finding(finding) for finding in findings],
        "gaps": [gap._asdict() for gap in report.gaps],
        "counts": vars(report.counts),
        "sizes": {
            name: value for name, value in report.sizes._asdict().items() if name != "origins"
        },
        "seconds": round(report.seconds, 3),
    }


def json_finding(finding: Finding) -> dict[str, Any]:
    """One finding with what its kind says of it."""
    return {
        "kind": finding.kind,
        "level": finding.level.value,
        "file": finding.path,
        "position": finding.position,
        "log_offset": finding.log_offset,
        "queue_offset": finding.queue_offset,
        "what": finding.what,
        "consequence": finding.consequence,
        "remedy": finding.remedy,
    }
