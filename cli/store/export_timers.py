"""`aerobee store export-timers`: messages with a time of their own become ones of delay levels."""

import argparse
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from aerobee.broker.core import wall_clock_ms
from aerobee.broker.delay.delivery_progress import TimerProgress
from aerobee.broker.delay.export import ExportReport, Kept, TimerExport
from aerobee.broker.delay.timer import roll_window_ms
from aerobee.broker.second_step.deleted_topics import stored_deletions
from aerobee.broker.tables.files.state_file import JsonStateFile, StateFileError
from aerobee.cli.printing.output import OK, CommandFailed, print_json, print_table, show
from aerobee.cli.printing.times import time_text
from aerobee.cli.store.opened import COULD_NOT, on_store, settings_of
from aerobee.config.model import Settings
from aerobee.protocol.frames.fastjson import dumps
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.errors import StoreError
from aerobee.store.message_store import MessageStore

_SHOWN: Final = 20


@on_store
def export_timers(parsed: argparse.Namespace) -> int:
    """Export what waits, and name what no delay level reaches."""
    settings, given = settings_of(parsed)
    with StoreAtRest(settings, given, reading=True) as rest:
        # These settings have the sizes of the store's files.
        settings = rest.settings
    file = _state_file(settings, "timerProgress.json")
    shown: list[Kept] = []
    with _list(parsed.list) as write:

        def listed(kept: Kept) -> None:
            write(kept)
            if parsed.json or len(shown) < _SHOWN:
                shown.append(kept)

        try:
            progress = TimerProgress(file, lambda: 0)
            deleted_at = stored_deletions(_state_file(settings, "deletedTopics.json"))
        except StateFileError as error:
            raise CommandFailed(str(error), COULD_NOT) from error
        store = MessageStore.open(settings)
        export = TimerExport(
            store=store,
            done=progress.done,
            now_ms=wall_clock_ms,
            window_ms=roll_window_ms(settings),
            listed=listed,
            deleted_at=deleted_at,
            dry_run=parsed.dry_run,
        )
        save: Callable[[], None] | None = None
        try:
            export.run()
            if not parsed.dry_run:
                save = partial(_save, store, progress, export)
        finally:
            clean = store.close(save)
    if not clean:
        raise StoreError(
            f"the store in {settings.store_path} could not bring everything to the disk: start the "
            "broker on it and stop it, then run this again"
        )
    if parsed.json:
        print_json(_fields(export.report, shown, dry_run=parsed.dry_run))
    else:
        _print(export.report, shown, parsed)
    return OK


def _state_file(settings: Settings, name: str) -> JsonStateFile:
    return JsonStateFile(os.path.join(settings.store_path, "config", name))


def _save(store: MessageStore, progress: TimerProgress, export: TimerExport) -> None:
    """Record the exported messages as done, if all records written are durable."""
    if store.durable >= store.written:
        progress.moved(export.done())
        text = progress.take_changes()
        if text is not None:
            progress.save(text)


@contextmanager
def _list(path: str | None) -> Iterator[Callable[[Kept], object]]:
    """Writes messages as lines of JSON into the file that was asked for."""
    if path is None:
        yield lambda _kept: None
        return
    with open(path, "wb") as file:
        yield lambda kept: file.write(dumps(kept._asdict()) + b"\n")


def _print(report: ExportReport, shown: list[Kept], parsed: argparse.Namespace) -> None:
    verb = "would be stored" if parsed.dry_run else "are stored"
    for level, count in sorted(report.exported.items()):
        show(f"{count} messages {verb} with delay level {level}")
    if not report.exported:
        show("no message waits that a delay level reaches")
    if report.recalled:
        show(f"{report.recalled} messages are recalled, and left out")
    if report.dropped:
        show(f"{report.dropped} messages are of topics that were deleted, and left out")
    for log_offset in report.unusable:
        show(f"the record at log offset {log_offset} cannot be read, or says not where it goes")
    if not report.kept:
        return
    show(f"{report.kept} messages are further ahead than any level reaches, and kept:")
    print_table(
        ("delivery", "topic", "queue", "id", "keys", "log offset"),
        [
            (time_text(one.deliver_ms), one.topic, one.queue_id, one.unique_id, one.keys,
             one.log_offset)
            for one in shown
        ],
    )  # fmt: skip
    if report.kept > len(shown):
        show(f"... and {report.kept - len(shown)} more (--list FILE, --json)")
    show("RocketMQ will not deliver these; this broker does when it runs on the store again")
    where = shlex.quote(parsed.directory)
    if parsed.config:
        where += f" -c {shlex.quote(parsed.config)}"
    show(
        f"one whole, with its properties: aerobee store dump messages {where} --from-log LOG_OFFSET"
        " --limit 1 --json"
    )


def _fields(report: ExportReport, kept: list[Kept], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "exported": sum(report.exported.values()),
        "levels": {str(level): count for level, count in sorted(report.exported.items())},
        "recalled": report.recalled,
        "dropped": report.dropped,
        "unusable": report.unusable,
        "kept": [one._asdict() for one in kept],
    }
