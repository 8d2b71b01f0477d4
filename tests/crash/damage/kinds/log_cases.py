"""Cases that damage the commit log: single bits, zeroed pages, cuts, files in the wrong place."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest

from aerobee.protocol.message.record_layout import SYS_BORN_HOST_V6
from tests.crash.damage import case as do
from tests.crash.damage.case import Case
from tests.crash.damage.originals import COUNT, SEGMENT, UNDISPATCHED, Original, Record

RECORDS = 20
SINGLE_BITS = 300
#: The originals of which every bit of these records is flipped.
EVERY_BIT = ("killed",)
#: (first byte, last byte + 1) of a record's fields up to the born host, which the rest counts from.
_HEAD = (
    ("size", 0, 4), ("magic", 4, 8), ("crc", 8, 12), ("queue id", 12, 16), ("flag", 16, 20),
    ("queue offset", 20, 28), ("log offset", 28, 36), ("sysflag", 36, 40),
    ("born time", 40, 48),
)  # fmt: skip
_GUARDED = frozenset(
    {"size", "magic", "crc", "log offset", "sysflag hosts", "body length", "body"}
    | {"topic length", "properties length"}
)
_PLACE = frozenset({"topic", "queue id", "queue offset"})
HOST_BITS = 0x30
CHECKED = "log: bit of a checked field"


def fields(record: Record) -> Iterator[tuple[str, int, int]]:
    """(name, first byte, last byte + 1) of all fields of a record."""
    yield from _HEAD
    message = record.message
    at = 48
    body = len(message.body)
    topic = len(message.topic.encode())
    properties = message.size - (
        48 + (20 if message.sys_flag & SYS_BORN_HOST_V6 else 8) + 8 + 8 + 16 + body + 1 + topic + 2
    )
    for name, size in (
        ("born host", 20 if message.sys_flag & SYS_BORN_HOST_V6 else 8),
        ("store time", 8), ("store host", 8), ("reconsume times", 4), ("prepared offset", 8),
        ("body length", 4), ("body", body), ("topic length", 1), ("topic", topic),
        ("properties length", 2), ("properties", properties),
    ):  # fmt: skip
        yield name, at, at + size
        at += size
    assert at == message.size


def kind_of_bit(field: str, position: int, mask: int) -> str:
    """The row of the table that a flipped bit of a field belongs to."""
    if field == "sysflag" and position == 39 and mask & HOST_BITS:
        return CHECKED
    if field in _GUARDED:
        return CHECKED
    return "log: bit of a place" if field in _PLACE else "log: bit nothing guards"


def kind_of_loss(original: Original, hit: frozenset[int], end: int) -> str:
    """The row for records that are gone as a whole, up to the log offset `end`."""
    if above_mark(original, hit):
        return "log: damage above the synced mark"
    return (
        "log: zeros to the end of the last segment"
        if end > original.log_end
        else ("log: zeroed page")
    )


def above_mark(original: Original, hit: frozenset[int]) -> bool:
    """Whether one of the records is above what a start can know to have been on the disk."""
    mark = mark_of(original, hit)
    return any(original.records[number].start >= mark for number in hit)


def mark_of(original: Original, hit: frozenset[int]) -> int:
    """The log offset below which damage is known to be damage."""
    if original.power_lost and original.flushed:
        return original.flushed
    named = [one.end for one in original.records[: COUNT - UNDISPATCHED] if one.number not in hit]
    return max(original.flushed, *named)


def log_cases(original: Original, rng: random.Random) -> Iterator[Case]:
    chosen = _choose(original, rng)
    yield from _single_bits(original, rng, chosen)
    if original.name in EVERY_BIT:
        yield from _every_bit(original, chosen)
    yield from _zeroed(original)
    yield from _tails(original, rng)
    yield from _sizes(original)
    yield from _misplaced(original)
    yield from _odd_files(original)


def _choose(original: Original, rng: random.Random) -> list[Record]:
    """The first, the last, both sides of a roll, and others, no two side by side."""
    records = original.records
    last = len(records) - 1
    roll = next(one.number for one in records if one.start == SEGMENT)
    numbers = [0, roll, last]
    rest = list(range(2, last - 1))
    rng.shuffle(rest)
    for number in rest:
        if len(numbers) < RECORDS and all(abs(number - other) > 1 for other in numbers):
            numbers.append(number)
    return [records[number] for number in sorted(numbers)]


def _single_bits(original: Original, rng: random.Random, chosen: list[Record]) -> Iterator[Case]:
    """One bit of some bytes of each record, one case each."""
    places = [
        (record, field, position)
        for record in chosen
        if not _may_begin_anew(record)
        for field, start, end in fields(record)
        for position in range(start, end)
    ]
    for record, field, position in rng.sample(places, SINGLE_BITS):
        mask = 1 << rng.randrange(8)
        hit = frozenset({record.number})
        guarded = kind_of_bit(field, position, mask) == CHECKED
        if guarded or not original.power_lost or not above_mark(original, hit):
            yield _flip(original, field, [(record, position)], mask)


def _every_bit(original: Original, chosen: list[Record]) -> Iterator[Case]:
    """Every bit of every byte of the chosen records, the same bit of all of them at once: all of
    them are lost, and no other."""
    layouts = [{name: (start, end) for name, start, end in fields(one)} for one in chosen]
    for field in layouts[0]:
        spans = [(one, *layout[field]) for one, layout in zip(chosen, layouts, strict=True)]
        for offset in range(max(end - start for _, start, end in spans)):
            places = [(one, start + offset) for one, start, end in spans if start + offset < end]
            for group in _unlike(places) if field in _PLACE else [places]:
                for bit in range(8):
                    yield _flip(original, field, group, 1 << bit, offset)


def _unlike(places: list[tuple[Record, int]]) -> Iterator[list[tuple[Record, int]]]:
    """No two of a topic at once: damaged alike, half the messages of a queue would agree with each
    other against the rest. Nothing else there could say which of them are right."""
    of_topic: dict[str, list[tuple[Record, int]]] = {}
    for record, position in places:
        if not _may_begin_anew(record):
            of_topic.setdefault(record.message.topic, []).append((record, position))
    for group in zip_longest(*of_topic.values()):
        yield [place for place in group if place is not None]


def _may_begin_anew(record: Record) -> bool:
    """Whether one bit makes it message 0 of a queue that no unit contradicts: as the first message
    of a topic that was deleted and is used again it is believed."""
    offset = record.message.queue_offset
    return record.number >= COUNT - UNDISPATCHED and offset & (offset - 1) == 0


def _flip(
    original: Original, field: str, places: list[tuple[Record, int]], mask: int, offset: int = 0
) -> Case:
    def apply(root: do.Path) -> None:
        for record, position in places:
            name, at = do.place(record, SEGMENT)
            do.flip_bits(root, name, [(at + position, mask)])

    record, position = places[0]
    hit = frozenset(one.number for one, _ in places)
    numbers = f"{record.number}" if len(hit) == 1 else f"{record.number} and {len(hit) - 1} more"
    kind = kind_of_bit(field, position, mask)
    if kind == CHECKED and original.power_lost and above_mark(original, hit):
        kind = "log: damage above the synced mark"
    where = f"{field} byte {position}" if len(places) == 1 else f"{field} byte +{offset}"
    return Case(original.name, kind, f"{where} bit {mask:#04x} of record {numbers}", apply, hit)


def _zeroed(original: Original) -> Iterator[Case]:
    """Pages and sectors that never reached the disk, below the end of the log."""
    for size in (512, 1024, 4096):
        for start in range(0, original.log_end, size):
            name = f"commitlog/{start // SEGMENT * SEGMENT:020d}"
            hit = do.touched(original, [(start, start + size)])
            if not hit:
                continue
            apply = partial(_zero, name=name, position=start % SEGMENT, size=size)
            kind = kind_of_loss(original, hit, start + size)
            yield Case(original.name, kind, f"{size} at {start}", apply, hit)


def _zero(root: do.Path, name: str, position: int, size: int) -> None:
    do.patch(root, name, position, bytes(size))


def _tails(original: Original, rng: random.Random) -> Iterator[Case]:
    """Zeros from each record's boundary, and one byte before and behind it, to the file's end."""
    for record in original.records:
        for shift in (-1, 0, 1):
            start = record.start + shift
            name, _ = do.place(record, SEGMENT)
            file_start = record.start // SEGMENT * SEGMENT
            if start < file_start:
                continue
            hit = do.touched(original, [(start, file_start + SEGMENT)])
            kind = kind_of_loss(original, hit, file_start + SEGMENT)
            apply = partial(
                _zero, name=name, position=start - file_start, size=file_start + SEGMENT - start
            )
            yield Case(original.name, kind, f"to the end from {start}", apply, hit)


def _sizes(original: Original) -> Iterator[Case]:
    """A file that is shorter or longer than it has to be."""
    last = _last_used(original)
    for record in original.records:
        name, at = do.place(record, SEGMENT)
        for shift in (-1, 0, 1):
            if at + shift > 0:
                yield Case(
                    original.name,
                    "log: segment of a wrong size",
                    f"{name} cut at {at + shift}",
                    partial(do.truncate, name=name, size=at + shift),
                    file=name,
                )
    for name in original.segments():
        for size in (SEGMENT - 1, SEGMENT + 1, 2 * SEGMENT):
            yield Case(
                original.name,
                "log: segment of a wrong size",
                f"{name} of {size}",
                partial(do.truncate, name=name, size=size),
                file=name,
            )
        if name < last:
            yield Case(
                original.name,
                "log: segment of a wrong size",
                f"{name} of 0",
                partial(do.truncate, name=name, size=0),
                file=name,
            )


def _last_used(original: Original) -> str:
    """The file that the last record is in."""
    return do.place(original.records[-1], SEGMENT)[0]


def hits(original: Original, name: str) -> frozenset[int]:
    start = int(name[-20:])
    return do.touched(original, [(start, start + SEGMENT)])


def _misplaced(original: Original) -> Iterator[Case]:
    names = [name for name in original.segments() if hits(original, name)]
    image, kind = original.name, "log: segment under the name of another"
    for one in names:
        for other in names:
            if one < other:
                apply = partial(do.swap, one=one, other=other)
                yield Case(image, kind, f"{one} and {other} swapped", apply, file=one)
            if one != other:
                apply = partial(do.replace, name=other, data=original.files[one])
                yield Case(image, kind, f"{one} copied over {other}", apply, file=other)
        following = f"commitlog/{int(names[-1][-20:]) + SEGMENT:020d}"
        apply = partial(do.replace, name=following, data=original.files[one])
        yield Case(image, kind, f"{one} copied to {following}", apply, file=following)
    for name in names[1:-1]:
        apply = partial(do.remove, name=name)
        yield Case(image, "log: segment missing inside", name, apply, file=name)
    no_offsets = "" if original.flushed else ", no offsets file"
    yield Case(
        image,
        "log: first segment missing" + no_offsets,
        names[0],
        partial(do.remove, name=names[0]),
        hits(original, names[0]),
    )
    last = names[-1]
    gone = "log: last segment gone" + no_offsets
    for what, apply in (
        ("removed", partial(do.remove, name=last)),
        ("empty", partial(do.truncate, name=last, size=0)),
    ):

        def without_spare(root: do.Path, apply: do.Apply = apply) -> None:
            for name in original.segments():
                if name > last:
                    do.remove(root, name)
            apply(root)

        file = last if original.flushed else ""
        yield Case(image, gone, f"{last} {what}", without_spare, hits(original, last), file)
        if "abort" not in original.files:

            def copied(root: do.Path, apply: do.Apply = without_spare) -> None:
                apply(root)
                do.remove(root, "offsets")

            stopped = "log: last segment gone after a stop, no offsets file"
            yield Case(image, stopped, f"{last} {what}", copied, hits(original, last), last)


def _odd_files(original: Original) -> Iterator[Case]:
    image = original.name
    for name in original.segments():
        if not hits(original, name):
            continue
        for what, apply in (("a directory", do.make_directory), ("a link to nothing", do.dangle)):
            yield Case(
                image, "log: no file in the place of a segment", f"{name} is {what}",
                partial(apply, name=name), file=name,
            )  # fmt: skip
        yield Case(image, "log: segment behind a link", name, partial(do.link, name=name))
    for name in ("notes.txt", "lost+found", "00000000000000004096.bak", "0000", "１" * 20):
        path = f"commitlog/{name}"
        yield Case(
            image, "log: foreign name", path,
            partial(do.replace, name=path, data=b"mine"), file=path,
        )  # fmt: skip
        yield Case(
            image, "log: foreign name", f"{path} a directory",
            partial(do.make_directory, name=path), file=path,
        )  # fmt: skip
    yield Case(
        image, "log: directory missing", "removed", partial(do.remove, name="commitlog"),
        file="commitlog",
    )  # fmt: skip
