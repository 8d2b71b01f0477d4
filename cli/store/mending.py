"""`aerobee store rebuild`, `repair` and `truncate`: what changes a store at rest.

`repair` and `truncate` say what would be done, and with `--yes` do it.
"""

import argparse
from typing import Any, Final

from aerobee.cli.printing.output import OK, print_json, print_table, say, show
from aerobee.cli.printing.progress_bar import Progress
from aerobee.cli.printing.times import parse_time, time_text
from aerobee.cli.store.opened import (
    DAMAGED,
    SOUND,
    compiled_form,
    locked_to_read,
    on_store,
    print_aside,
    save_table,
    settings_of,
)
from aerobee.cli.store.verify import json_report, print_report
from aerobee.pipeline.jobs.common.job_result import size_text
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import RebuildReport, rebuild
from aerobee.store.at_rest.repair.repair import plan_repair, repair
from aerobee.store.at_rest.repair.repair_plan import RepairPlan
from aerobee.store.at_rest.repair.truncate import Cut, plan_cut, truncate
from aerobee.store.inspect.audit_report import Report

_QUEUES_SHOWN: Final = 20


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
        print_json(_rebuild_fields(report))
    else:
        _print_rebuild(settings.store_path, report)
    return OK


def _print_rebuild(root: str, report: RebuildReport) -> None:
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


def _rebuild_fields(report: RebuildReport) -> dict[str, Any]:
    gaps = [gap._asdict() for gap in report.gaps]
    return {**vars(report), "gaps": gaps, "seconds": round(report.seconds, 3)}


@on_store
def repair_store(parsed: argparse.Namespace) -> int:
    """Mend a store; exit code 0 when it is sound (then), 1 when it is damaged (still)."""
    settings, given = settings_of(parsed)
    after: Report | None = None
    with Progress(shown=not parsed.quiet) as progress:
        form = compiled_form()
        with StoreAtRest(settings, given, reading=not parsed.yes, compiled=form) as rest:
            plan = plan_repair(rest, progress)
            if not parsed.json:
                _print_plan(settings.store_path, plan)
            done = parsed.yes and plan.anything and not plan.impossible
            if done:
                repair(rest, plan, save_table, progress)
        if done:
            with locked_to_read(settings):
                after = verify(settings, given, progress=progress)
    if parsed.json:
        print_json(_repair_fields(plan, after, rest.aside))
    elif after is not None:
        show("")
        print_report(after)
        print_aside("what was taken out is", settings.store_path, rest.aside)
    elif plan.anything and not plan.impossible:
        show("nothing was changed; --yes does it")
    return SOUND if (after or plan.report).sound else DAMAGED


def _print_plan(root: str, plan: RepairPlan) -> None:
    for text in plan.impossible:
        show(f"CANNOT  {text}")
    if not plan.anything and not plan.impossible:
        show(f"{root}: nothing to repair")
    for number, step in enumerate(plan.steps, 1):
        show(f"{number}. {step.what.replace(f'{root}/', '')}")
        show(f"   keeps  {step.keeps}")
        show(f"   loses  {step.loses}")
    if plan.queues:
        show("then the consume queues are made again from the log; none ends lower than before")
    if plan.index:
        show("then the index is made again from the log")
    if plan.lost:
        show(f"messages lost in all of this, as far as queues name them: {plan.lost}")


def _repair_fields(plan: RepairPlan, after: Report | None, aside: str | None) -> dict[str, Any]:
    return {
        "done": after is not None,
        "steps": [
            {"what": step.what, "keeps": step.keeps, "loses": step.loses} for step in plan.steps
        ],
        "messages_lost": plan.lost,
        "rebuild_queues": plan.queues,
        "rebuild_index": plan.index,
        "impossible": plan.impossible,
        "before": json_report(plan.report),
        "after": None if after is None else json_report(after),
        "aside": aside,
    }


@on_store
def truncate_store(parsed: argparse.Namespace) -> int:
    """Cut a store at a log offset or a time."""
    after_ms = None if parsed.after_time is None else parse_time(parsed.after_time)
    settings, given = settings_of(parsed)
    with (
        StoreAtRest(settings, given, reading=not parsed.yes, compiled=compiled_form()) as rest,
        Progress(shown=not parsed.quiet) as progress,
    ):
        cut = plan_cut(rest, at=parsed.at, after_ms=after_ms, progress=progress)
        done = bool(parsed.yes and cut.bytes)
        if done:
            truncate(rest, cut, save_table, discard=parsed.discard, progress=progress)
    if parsed.json:
        print_json(_cut_fields(cut, rest.aside, done=done))
    else:
        _print_cut(settings.store_path, cut, rest.aside, done=done)
    return OK


def _print_cut(root: str, cut: Cut, aside: str | None, *, done: bool) -> None:
    if not cut.bytes:
        show(f"nothing to cut: the log of {root} ends at {cut.log_end}")
        return
    verb = "cut" if done else "would go"
    times = (
        f", stored {time_text(cut.first_ms)} to {time_text(cut.last_ms)}" if cut.first_ms else ""
    )
    show(
        f"{cut.records} records, {size_text(cut.bytes)} from log offset {cut.log_offset} to "
        f"{cut.log_end} {verb}{times}"
    )
    print_table(("topic", "messages"), sorted(cut.topics.items()))
    ends = sorted(cut.queue_ends.items())
    for (topic, queue_id), end in ends[:_QUEUES_SHOWN]:
        show(f"{topic}/{queue_id} {'ends' if done else 'would end'} before message {end}")
    if len(ends) > _QUEUES_SHOWN:
        show(f"... and {len(ends) - _QUEUES_SHOWN} more queues (--json)")
    if cut.offsets:
        show(f"{cut.offsets} offsets of groups {'are' if done else 'would be'} set back to that")
    if not done:
        show("nothing was changed; --yes does it")
    print_aside("what was cut is", root, aside)


def _cut_fields(cut: Cut, aside: str | None, *, done: bool) -> dict[str, Any]:
    return {
        "done": done,
        "log_offset": cut.log_offset,
        "log_end": cut.log_end,
        "bytes": cut.bytes,
        "records": cut.records,
        "topics": dict(sorted(cut.topics.items())),
        "queues": [
            {"topic": topic, "queue": queue_id, "end": end}
            for (topic, queue_id), end in sorted(cut.queue_ends.items())
        ],
        "segments": cut.segments,
        "offsets_set_back": cut.offsets,
        "first_store_timestamp_ms": cut.first_ms,
        "last_store_timestamp_ms": cut.last_ms,
        "aside": aside,
    }
