"""The last step of a recovery for each consume queue: it ends where the log ends, what is damaged
is blank, and numbers go on behind its last slot.

By now the log was asked: all that it has for the queue was compared with the entries and written.
What still names no message keeps its slot only, so that its number is not given out again.
"""

from aerobee.store.queues.consume_queue import ConsumeQueue
from aerobee.store.recovery.report import RecoveryReport
from aerobee.store.recovery.soundness import Soundness
from aerobee.store.scan.log_scanner import LogScanner
from aerobee.store.scan.sequence import Gap


def settle(
    queue: ConsumeQueue,
    scan: LogScanner,
    log_start: int,
    soundness: Soundness,
    report: RecoveryReport,
) -> None:
    """Cut the queue where the log ends, blank what is damaged, set its numbers. Raises OSError."""
    for gap in scan.gaps:
        _blank_gap(queue, gap, report)
    end = queue.max_offset
    while end > queue.first_offset:
        entry = queue.entry(end - 1)
        if entry is None and queue.is_pre_blank(end - 1):
            break
        if entry is not None and entry[0] + entry[1] <= scan.end:
            break
        end -= 1
    if end < queue.max_offset:
        report.cut(queue, end)
        queue.zero_from(end)
    _blank_unsound_tail(queue, log_start, soundness, report)
    queue.correct_min_offset(log_start)
    queue.recovered()


def _blank_unsound_tail(
    queue: ConsumeQueue, log_start: int, soundness: Soundness, report: RecoveryReport
) -> None:
    """The last entries must name their records; one that does not keeps its slot only.

    It is left over from a foreign recovery that cut the log but not the queue, or its record is
    damaged. Either way consumers may have seen its offset, so it is not given out again.
    """
    for offset in range(queue.max_offset - 1, queue.first_offset - 1, -1):
        entry = queue.entry(offset)
        if entry is None or entry[0] < log_start:
            return
        if soundness.named_back(queue, offset, entry) is not None:
            return
        queue.blank_out(offset)
        report.entries_blanked += 1


def _blank_gap(queue: ConsumeQueue, gap: Gap, report: RecoveryReport) -> None:
    offset = queue.first_at(gap.start)
    while offset < queue.max_offset:
        entry = queue.entry(offset)
        if entry is not None:
            if entry[0] >= gap.end:
                return
            queue.blank_out(offset)
            report.entries_blanked += 1
        offset += 1
