"""`aerobee store repair`: says what would be done, with --yes does it, and verifies the result."""

import argparse
from typing import Any

from aerobee.cli.output import print_json, show
from aerobee.cli.progress import Progress
from aerobee.cli.store.access import (
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
from aerobee.store.audit.verify import verify
from aerobee.store.inspect.report import Report
from aerobee.store.repair.at_rest import StoreAtRest
from aerobee.store.repair.plan import Plan
from aerobee.store.repair.repair import plan_repair, repair


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
        print_json(_fields(plan, after, rest.aside))
    elif after is not None:
        show("")
        print_report(after)
        print_aside("what was taken out is", settings.store_path, rest.aside)
    elif plan.anything and not plan.impossible:
        show("nothing was changed; --yes does it")
    return SOUND if (after or plan.report).sound else DAMAGED


def _print_plan(root: str, plan: Plan) -> None:
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


def _fields(plan: Plan, after: Report | None, aside: str | None) -> dict[str, Any]:
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
