"""Repairs damage that a start refuses, or by which a start would lose more: plans, then carries it
out.

A plan is made from an audit and says for each step what is kept and what is lost. Nothing is
invented and nothing renumbered: lost records leave fillers or blanks in the log
(`protocol/message/filler.py`) and empty slots in their queues, so every record and every message
keeps its offset, in this broker and in RocketMQ. Nothing is deleted: bytes that are overwritten,
and files that are taken out, are in lost+found.

The order makes each step possible for the next: first files get out of each other's way and into
their places, then all have their lengths, then the log is made readable from end to end, then
queues and index are made from it, and the tables last. If it is broken off anywhere, it begins
again from a new audit.

It may also be broken off and the store started instead, by this broker or RocketMQ. So no entry
leads to a place at the moment when a filler is put there: it is made a pre-blank first, or a
consumer would get the filler for the lost message.

It does not make up a log that is missing as a whole (a volume is probably not mounted), and does
not write to a disk that refuses to be read.
"""

from contextlib import closing

from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.at_rest.repair import steps
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import rebuild
from aerobee.store.at_rest.repair.repair_plan import RepairPlan, RepairPlanner
from aerobee.store.at_rest.repair.truncate import SaveTable
from aerobee.store.recovery.recovery_report import Progress


def plan_repair(rest: StoreAtRest, progress: Progress | None = None) -> RepairPlan:
    """Plan the repair of the store that `rest` holds. Changes nothing."""
    report = verify(rest.settings, rest.given, rest.files, rest.clock, progress)
    return RepairPlanner(rest, report).plan()


def repair(
    rest: StoreAtRest, plan: RepairPlan, save_table: SaveTable, progress: Progress | None = None
) -> None:
    """Carry out a plan that was made of the same locked store, which is given back.

    Raises OSError or StoreError; steps that were done stay, and a new plan takes over.
    """
    changes = any(step.log for step in plan.steps) or plan.queues or plan.index
    for step in plan.steps:
        if step.first and step.act is not None:
            step.act(rest)
    if changes:
        rest.distrust(without=plan.filled, reaches=plan.report.log.end)
        steps.blank_entries(rest, plan.overwritten)
    for step in plan.steps:
        if not step.first and step.act is not None:
            step.act(rest)
    rest.look()
    if plan.queues or plan.index:
        rebuild(rest, queues=plan.queues, index=plan.index, progress=progress, recover=False)
        rest.look()
    if plan.set_back:  # no group has an offset above the end of its queue
        with closing(rest.store) as store:
            for path, content in store.tables().set_back(store.queue_end):
                save_table(path, content)
    if changes:
        rest.recover(progress)
