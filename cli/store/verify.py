"""`aerobee store verify`: whether a store is sound, and if not, the faults, their results and the
remedies."""

import argparse
import sys
from typing import Any, Final

from aerobee.cli.printing.output import print_json, show, show_marked
from aerobee.cli.printing.progress_bar import Progress
from aerobee.cli.printing.times import time_text
from aerobee.cli.store.opened import DAMAGED, SOUND, below, locked_to_read, on_store, settings_of
from aerobee.pipeline.jobs.common.job_result import size_text
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.inspect.audit_report import Finding, Report
from aerobee.store.inspect.finding_kinds import KINDS, Level

_SHOWN_PER_KIND: Final = 10
_COLOURS: Final = {Level.DAMAGE: "1;31", Level.WARNING: "33", Level.NOTE: "36"}


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
    for kind in dict.fromkeys(finding.kind for finding in report.findings):
        _print_kind(report, kind, shown_per_kind)
    show(*_summary(report), verdict(report))


def verdict(report: Report) -> str:
    """One line: sound or damaged, and how much of each level."""
    findings = report.findings
    damage, warnings = findings.count(Level.DAMAGE), findings.count(Level.WARNING)
    more = f", {warnings} warnings" if warnings else ""
    if report.sound:
        return f"{report.root} is SOUND{more}"
    return f"{report.root} is DAMAGED: {damage} findings{more}"


def _print_kind(report: Report, kind: str, most: int) -> None:
    described, count = KINDS[kind], report.findings.counts[kind]
    times = f"  ({count} times)" if count > 1 else ""
    level = described.level
    show_marked(level.value.upper(), f"  {kind}{times}", _COLOURS[level])
    found = report.findings.of(kind)
    for finding in found[:most]:
        show(f"  {_place(report.root, finding)}: {finding.what}")
    if count > min(most, len(found)):
        show(f"  ... and {count - min(most, len(found))} more (--all, --json)")
    show(f"  means  {described.consequence}")
    show(f"  do     {described.remedy}")
    show("")


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
