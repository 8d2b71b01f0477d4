"""`aerobee store rebuild`: consume queues and index, made again from the log."""

import argparse
from typing import Any

from aerobee.cli.output import OK, print_json, say, show
from aerobee.cli.progress import Progress
from aerobee.cli.store.access import compiled_form, on_store, print_aside, settings_of
from aerobee.store.repair.at_rest import StoreAtRest
from aerobee.store.repair.rebuild import RebuildReport, rebuild


@on_store
def rebuild_store(parsed: argparse.Namespace) -> int:
    """Make queues and index again, or only the part that is asked for."""
    settings, given = settings_of(parsed)
    both = parsed.queues == parsed.index
    with (
        StoreAtRest(settings, given, compiled=compiled_form()) as rest,
        Progress(shown=not parsed.quiet) as progress,
    ):
        report = rebuild(
            rest, queues=parsed.queues or both, index=parsed.index or both, progress=progress
        )
    if parsed.json:
        print_json(_fields(report))
    else:
        _print(settings.store_path, report)
    return OK


def _print(root: str, report: RebuildReport) -> None:
    show(f"read    {report.records} records in {report.seconds:.1f} s")
    if report.queues:
        show(f"queues  {report.queues} with {report.units} entries")
    if report.index_files:
        show(f"index   {report.index_files} files with {report.keys} keys")
    if report.blanked:
        show(f"kept    {report.blanked} slots of lost messages, so that numbering goes on")
    if report.deleted:
        show(f"left    {report.deleted} messages of deleted topics without a queue")
    for gap in report.gaps:
        say(f"damaged: {gap.end - gap.start} bytes from {gap.start} to {gap.end}: {gap.reason}")
    print_aside("the old files are", root, report.aside)


def _fields(report: RebuildReport) -> dict[str, Any]:
    gaps = [gap._asdict() for gap in report.gaps]
    return {**vars(report), "gaps": gaps, "seconds": round(report.seconds, 3)}
