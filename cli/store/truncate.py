"""`aerobee store truncate`: says what would go, and with --yes cuts it off."""

import argparse
from typing import Any, Final

from aerobee.cli.output import OK, print_json, print_table, show
from aerobee.cli.progress import Progress
from aerobee.cli.store.access import compiled_form, on_store, print_aside, save_table, settings_of
from aerobee.cli.times import parse_time, time_text
from aerobee.pipeline.jobs.result import size_text
from aerobee.store.repair.at_rest import StoreAtRest
from aerobee.store.repair.truncate import Cut, plan_cut, truncate

_QUEUES_SHOWN: Final = 20


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
        print_json(_fields(cut, rest.aside, done=done))
    else:
        _print(settings.store_path, cut, rest.aside, done=done)
    return OK


def _print(root: str, cut: Cut, aside: str | None, *, done: bool) -> None:
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


def _fields(cut: Cut, aside: str | None, *, done: bool) -> dict[str, Any]:
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
