"""`aerobee store backup`, `restore`, `verify-backup`: copies of a store, made beside a broker."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aerobee.cli.printing.output import OK, CommandFailed, print_json, say, show
from aerobee.cli.printing.progress_bar import Progress
from aerobee.cli.printing.times import time_text
from aerobee.cli.store.opened import COULD_NOT, DAMAGED, SOUND, compiled_form, on_store, settings_of
from aerobee.pipeline.jobs.common.job_result import size_text
from aerobee.store.at_rest.backup.backup import BackupOptions, BackupReport, back_up
from aerobee.store.at_rest.backup.check import BackupCheck, check_backup
from aerobee.store.at_rest.backup.restore import RestoreReport, restore
from aerobee.store.disk.files import is_full
from aerobee.store.errors import BackupDamaged


@on_store
def back_up_store(parsed: argparse.Namespace) -> int:
    """Copy what is new in a store to a backup."""
    settings, given = settings_of(parsed)
    with Progress(shown=not parsed.quiet) as progress, _room_said("backup"):
        options = BackupOptions(rate=parsed.rate * 1_000_000, progress=progress)
        report = back_up(settings, parsed.target, given, options=options)
    if parsed.json:
        print_json(vars(report))
    else:
        _print_backup(report)
    return OK


def _print_backup(report: BackupReport) -> None:
    show(
        f"log     {report.log_begins} to {report.mark} in {report.segments} segments",
        f"tables  {report.tables} files",
        f"copied  {size_text(report.copied_bytes)} to {report.target}",
    )
    for name in report.left_out:
        say(f"segment {name} was deleted by the broker before it was copied")


@on_store
def restore_store(parsed: argparse.Namespace) -> int:
    """Make a store of a backup; exit code 1 if the backup is damaged."""
    settings, given = settings_of(parsed)
    form = compiled_form()
    try:
        with Progress(shown=not parsed.quiet) as progress, _room_said("store"):
            report = restore(parsed.target, settings, given, compiled=form, progress=progress)
    except BackupDamaged as error:
        raise CommandFailed(f"{error}. Nothing was restored.", DAMAGED) from error
    if parsed.json:
        print_json(_restore_fields(report))
    else:
        _print_restore(report)
    return OK


def _print_restore(report: RestoreReport) -> None:
    show(f"log     {report.log_begins} to {report.mark}")
    if (rebuilt := report.rebuilt) is not None:
        show(f"queues  {rebuilt.queues} with {rebuilt.units} entries")
        show(f"index   {rebuilt.index_files} files with {rebuilt.keys} keys")
        for gap in rebuilt.gaps:
            size = gap.end - gap.start
            say(f"damaged: {size} bytes from {gap.start} to {gap.end}: {gap.reason}")
    if report.emptied:
        say(
            f"without messages now: {', '.join(report.emptied)}. If the broker has multi-dispatch, "
            f"run 'aerobee store rebuild {report.root} -c' with its configuration"
        )
    show(f"{report.root} is as the store was on {time_text(report.time_ms)}")


def _restore_fields(report: RestoreReport) -> dict[str, Any]:
    rebuilt = report.rebuilt
    return {
        "directory": report.root,
        "mark": report.mark,
        "log_begins": report.log_begins,
        "time_ms": report.time_ms,
        "copied_bytes": report.copied_bytes,
        "records": rebuilt.records if rebuilt else 0,
        "queues": rebuilt.queues if rebuilt else 0,
        "units": rebuilt.units if rebuilt else 0,
        "keys": rebuilt.keys if rebuilt else 0,
        "emptied_queues": report.emptied,
        "gaps": [gap._asdict() for gap in rebuilt.gaps] if rebuilt else [],
    }


@on_store
def verify_backup(parsed: argparse.Namespace) -> int:
    """Read a backup as a whole; exit code 0 when a store can be made of it, 1 when not."""
    parsed.directory = parsed.target
    try:
        with Progress(shown=not parsed.quiet) as progress:
            check = check_backup(parsed.target, progress=progress)
    except BackupDamaged as error:
        raise CommandFailed(str(error), DAMAGED) from error
    if parsed.json:
        print_json({**vars(check), "sound": check.sound})
    else:
        _print_check(check)
    return SOUND if check.sound else DAMAGED


def _print_check(check: BackupCheck) -> None:
    for name, problem in check.damaged:
        show(f"DAMAGE  {name}: {problem}")
    if check.mark is None:
        show("no backup has come to its end here; run 'aerobee store backup' again")
    else:
        show(f"log     {check.log_begins} to {check.mark}")
    show(f"read    {check.files} files, {size_text(check.checked_bytes)}")
    show(f"{check.target} is {'SOUND' if check.sound else 'DAMAGED'}")


@contextmanager
def _room_said(what: str) -> Iterator[None]:
    """A full disk ends the command with what to do about it."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        where = os.fsdecode(error.filename or "")
        then = (
            "What was copied before counts: make room there and run the same command again"
            if what == "backup"
            else "Nothing is in place yet: make room there and run the same command again"
        )
        raise CommandFailed(f"{where}: {error.strerror}. {then}", COULD_NOT) from error
