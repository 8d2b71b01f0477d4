"""Judges whether an index file is whole: a crash may have kept any of its pages from the disk.

The reference deletes such a file and rebuilds a part of it at best (store/FORMAT.md 8.4). Checking
is twenty times faster than rebuilding, and a file that passes loses nothing: the entries, read in
order, determine what every slot must hold, so a page that is missing or old shows up as an entry
that points nowhere or a slot that does not know its newest entry.

A process that was killed between two keys leaves slots and entries beyond the count in the header.
Those are cut off again, which needs no rebuild: each slot is set back to its newest counted entry.
"""

from array import array

from aerobee.store.index.index_file import IndexFile
from aerobee.store.index.view import IndexView, no_entries


def repair_index_file(file: IndexFile) -> bool:
    """Set back slots that are ahead; return whether the file's entries and slots agree then.

    Entries after the counted ones are blanked. Raises OSError.
    """
    view = IndexView(file.read, file.slots)
    newest = _newest_of_slots(file, view)
    if newest is None:
        return False
    ahead = [wrong for chunk in view.wrong_slots(newest) for wrong in chunk]
    if any(not file.leads_to(stored, slot, expected) for slot, stored, expected in ahead):
        return False
    for slot, _, expected in ahead:
        file.set_slot(slot, expected)
    file.blank_entries(file.count, file.entries)
    return True


def cut_uncounted(file: IndexFile) -> bool:
    """Take out the entries after the counted ones, where the process was killed between keys.

    This is for a file that has all bytes stored in it: its counted part is whole then, and slots
    lead at most to the entries after that. An entry was stored before its slot, so each slot goes
    back to the entry that its first uncounted entry names as the one before. False if the header
    does not belong to the last counted entry (it was being stored).
    """
    if file.count > 1:
        last = file.entry(file.count - 1)
        if last[1] != file.end_offset:
            return False
    found: list[tuple[int, int]] = []
    number = file.count
    while number < file.entries and any(entry := file.entry(number)):
        key_hash, _, _, previous = entry
        found.append((key_hash % file.slots, previous))
        number += 1
    for place, (slot, previous) in reversed(list(enumerate(found))):
        # The very last entry may be half stored; then nothing leads to it.
        is_last = place == len(found) - 1
        if 0 <= previous < number and not (is_last and file.slot(slot) < file.count):
            file.set_slot(slot, previous)
    if found:
        file.blank_entries(file.count, number)
    return True


def _newest_of_slots(file: IndexFile, view: IndexView) -> "array[int] | None":
    """The newest counted entry of each slot by the entries alone; None if they do not fit."""
    slots = file.slots
    newest = no_entries(slots)
    used = 0
    last_offset = 0
    for first, entries in view.chunks(file.count):
        for number, (key_hash, log_offset, seconds, previous) in enumerate(entries, first):
            slot = key_hash % slots
            if key_hash < 0 or log_offset < last_offset or seconds < 0:
                return None
            if previous != newest[slot]:
                return None
            used += previous == 0
            newest[slot] = number
            last_offset = log_offset
    if file.count > 1 and (last_offset != file.end_offset or used != file.used_slots):
        return None
    return newest
