"""How far the publishing of decided batches has got: counted at a start, from the log alone.

A kill or a power cut leaves a beginning of what was put: the records behind a stage's last slice
mark are the rows that were put of that slice, as many as a kill has left, and all rows before the
slice are in the log because the mark is.

Where the log has been damaged since, records of some of those rows are no longer usable. Then every
row is looked for from the first open intent on, and those that are not found are put again: nobody
can be sent a damaged record. Recovery begins where all was synced, so this part of the log is
checked once more. The store remembers its gaps, so the next start does the same, and nothing has to
be noted meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from aerobee.broker.staging.rows import DELAY_ENTRY, has_entry
from aerobee.broker.staging.table import Chunk, Intent, Stage
from aerobee.protocol.message.properties import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
)
from aerobee.protocol.message.record import Message, StoreMessage, decode_record
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.message_store import MessageStore
from aerobee.store.reading.delayed_messages import asked_level

#: The messages of a chunk; None if it cannot be read.
Load = Callable[[Chunk], list[StoreMessage] | None]

#: Whether it waits, topic, queue, flag, body, unique id.
Identity = tuple[bool, str, str, int, bytes, str | None]


def count_published(store: MessageStore, intents: Sequence[Intent], load: Load) -> None:
    """Set `published` and `missing` of the stages of these intents, which are open."""
    if not intents:
        return
    begin = min(intent.end for intent in intents)
    store.look_for_damage(begin)
    gaps = [gap for gap in store.known_gaps if gap[1] > begin]
    there = Counter(
        hash(_identity_of(decode_record(record)))
        for record in (store.records_from(begin, gaps) if gaps else ())
    )
    for intent in intents:
        for stage in intent.stages:
            if gaps:
                _look_for_each(stage, there, load)
            else:
                _count_last_slice(store, stage, load)


def is_delayed(message: StoreMessage) -> bool:
    """Whether it waits before it is delivered."""
    if not has_entry(message.properties, DELAY_ENTRY):
        return False
    return asked_level(decode_properties(message.properties).get(PROPERTY_DELAY, "")) > 0


def _count_last_slice(store: MessageStore, stage: Stage, load: Load) -> None:
    slice_ = stage.last_slice
    if slice_ is None or slice_.first >= stage.rows:
        return
    place, first = stage.chunk_at(slice_.first)
    messages = load(place)
    if messages is None:
        return
    start = slice_.first - first
    expected = [_identity(message) for message in messages[start : start + slice_.rows]]
    done = 0
    for record in store.records_from(slice_.behind, ()):
        if done == len(expected) or _identity_of(decode_record(record)) != expected[done]:
            break
        done += 1
    stage.published = slice_.first + done


def _look_for_each(stage: Stage, there: Counter[int], load: Load) -> None:
    """Take the stage's rows out of `there`, hashes of what is in the log by how often it is."""
    number = stage.published = 0
    missing: list[int] = []
    for index in sorted(stage.chunks):
        place = stage.chunks[index]
        messages = load(place)
        for row in range(place.rows):
            one = None if messages is None else hash(_identity(messages[row]))
            if one is not None and there[one] > 0:
                there[one] -= 1
                stage.published = number + 1
            else:
                missing.append(number)
            number += 1
    stage.missing = [row for row in missing if row < stage.published]


def _identity(message: StoreMessage) -> Identity:
    """What a row's record is known by. Of one that waits that is where it goes, not its level: the
    settings may have had other levels when it was put."""
    unique = decode_properties(message.properties).get(PROPERTY_UNIQUE_KEY)
    waits = is_delayed(message)
    return waits, message.topic, str(message.queue_id), message.flag, message.body, unique


def _identity_of(message: Message) -> Identity:
    properties = message.properties
    waits = message.topic == SCHEDULE_TOPIC
    place = message.topic, str(message.queue_id)
    if waits:
        place = properties.get(PROPERTY_REAL_TOPIC, ""), properties.get(PROPERTY_REAL_QUEUE_ID, "")
    return waits, *place, message.flag, message.body, properties.get(PROPERTY_UNIQUE_KEY)
