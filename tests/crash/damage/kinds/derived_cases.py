"""Cases that damage what can be made again from the log: consume queues and index files."""

import random
from collections.abc import Iterator
from functools import partial

from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.queues.consume_queue_ext import MOST_ADDRESS
from tests.crash.damage import case as do
from tests.crash.damage.case import Case
from tests.crash.damage.originals import Original

UNGUARDED = "queue: wrong delivery time, tags code like an address"
LONGER = "queue: entries behind its end"
NO_OFFSETS = ", no offsets file"
UNIT_BYTES = 20
QUEUE_BYTES = 200
INDEX_HEADER, INDEX_SLOTS, INDEX_ENTRIES = 40, 50, 40
_UNIT_FIELDS = (("log offset", 0, 8), ("size", 8, 12), ("tags code", 12, 20))
_HEADER_FIELDS = (
    ("begin time", 0, 8), ("end time", 8, 16), ("begin offset", 16, 24), ("end offset", 24, 32),
    ("slots in use", 32, 36), ("count", 36, 40),
)  # fmt: skip
_ENTRY_FIELDS = (("hash", 0, 4), ("log offset", 4, 12), ("seconds", 12, 16), ("previous", 16, 20))


def derived_cases(original: Original, rng: random.Random) -> Iterator[Case]:
    yield from _units(original, rng)
    yield from _queue_files(original)
    yield from _index_bits(original, rng)
    yield from _index_files(original)


def _names(original: Original, folder: str) -> list[str]:
    return sorted(name for name in original.files if name.startswith(folder + "/"))


def _units(original: Original, rng: random.Random) -> Iterator[Case]:
    """Single bits, single units, pages of units."""
    image, kind = original.name, "queue: wrong entry"
    for name in _names(original, "consumequeue"):
        used = len(original.files[name].rstrip(b"\0"))
        units = -(-used // UNIT_BYTES)
        for unit in range(units):
            for field, start, end in _UNIT_FIELDS:
                position = unit * UNIT_BYTES + rng.randrange(start, end)
                mask = 1 << rng.randrange(8)
                apply = partial(do.flip_bits, name=name, bits=[(position, mask)])
                what = f"{name} {field} {position} bit {mask:#04x}"
                at = unit * UNIT_BYTES + 12
                code = original.files[name][at : at + 8]
                unguarded = field == "tags code" and (
                    SCHEDULE_TOPIC in name or _is_like_address(code, position - at, mask)
                )
                yield Case(image, UNGUARDED if unguarded else kind, what, apply)
            for what, data in (
                ("zeroed", bytes(UNIT_BYTES)),
                ("pre-blank", bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)),
            ):
                if what == "pre-blank" and not unit and name.endswith("0" * 20):
                    continue  # where a queue begins, that means that its message is lost
                apply = partial(do.patch, name=name, position=unit * UNIT_BYTES, data=data)
                yield Case(image, kind, f"{name} unit {unit} {what}", apply)
        # A last unit that seems to name more than the log has would have its slot given again.
        for position in range((units - 1) * UNIT_BYTES + 8, (units - 1) * UNIT_BYTES + 12):
            mask = 1 << rng.randrange(8)
            apply = partial(do.flip_bits, name=name, bits=[(position, mask)])
            yield Case(image, kind, f"{name} last size {position} bit {mask:#04x}", apply)
        for what, start, end in (
            ("first half", 0, used // 2), ("second half", used // 2, used), ("all", 0, used),
        ):  # fmt: skip
            apply = partial(do.patch, name=name, position=start, data=bytes(end - start))
            yield Case(image, kind, f"{name} {what} zeroed", apply)
        if used < QUEUE_BYTES:
            stray = bytes(6) + b"\x30\x39" + b"\x00\x00\x00\x77" + bytes(8)
            apply = partial(do.patch, name=name, position=QUEUE_BYTES - UNIT_BYTES, data=stray)
            yield Case(image, LONGER, f"{name} stray unit at its end", apply)


def _is_like_address(code: bytes, position: int, mask: int) -> bool:
    """Whether a tags code with that bit flipped looks like the address of an extension unit, for
    which every filter matches."""
    flipped = bytearray(code)
    flipped[position] ^= mask
    return int.from_bytes(flipped, "big", signed=True) <= MOST_ADDRESS


def _queue_files(original: Original) -> Iterator[Case]:
    image = original.name
    names = _names(original, "consumequeue")
    for name in names:
        missing = "queue: file, queue or topic missing"
        yield Case(image, missing, name, partial(do.remove, name=name))
        apply = partial(do.truncate, name=name, size=0)
        yield Case(image, "queue: empty file", name, apply)
        for size in (1, UNIT_BYTES, 100, QUEUE_BYTES - 1, QUEUE_BYTES + 1, 2 * QUEUE_BYTES):
            apply = partial(do.truncate, name=name, size=size)
            yield Case(image, "queue: file of a wrong size", f"{name} of {size}", apply, file=name)
        for what, damage in (("a directory", do.make_directory), ("a link to nothing", do.dangle)):
            apply = partial(damage, name=name)
            yield Case(image, "queue: no file in its place", f"{name} is {what}", apply, file=name)
        yield Case(image, "queue: file behind a link", name, partial(do.link, name=name))
        directory = name.rpartition("/")[0]
        following = f"{directory}/{int(name[-20:]) + 5 * QUEUE_BYTES:020d}"
        apply = partial(do.replace, name=following, data=original.files[name])
        yield Case(image, LONGER, f"{name} copied to {following}", apply)
        last = max(one for one in names if one.startswith(directory))
        following = f"{directory}/{int(last[-20:]) + QUEUE_BYTES:020d}"
        apply = partial(do.replace, name=following, data=original.files[name])
        yield Case(image, LONGER, f"{name} copied to {following}", apply)
    yield from _others_content(original, names)
    for one, other in zip(names, names[1:] + names[:1], strict=True):
        apply = partial(do.swap, one=one, other=other)
        yield Case(image, LONGER, f"{one} and {other} swapped", apply)
    for directory in original.directories:
        if directory.startswith("consumequeue"):
            apply = partial(do.remove, name=directory)
            kind = "queue: file, queue or topic missing"
            if not original.flushed and directory != "consumequeue":
                kind = "queue: topic missing, no offsets file"
            yield Case(image, kind, directory, apply)
    for path in ("consumequeue/notes", "consumequeue/Orders/notes", "consumequeue/Orders/0/notes",
                 "consumequeue/Orders/0/0000", "consumequeue/Orders/-1"):  # fmt: skip
        apply = partial(do.replace, name=path, data=b"mine")
        yield Case(image, "queue: foreign name", path, apply, file=path)
    for path in ("consumequeue/Orders/notes", "consumequeue/Orders/0/notes"):
        apply = partial(do.make_directory, name=path)
        yield Case(image, "queue: foreign name", f"{path} a directory", apply, file=path)


def _others_content(original: Original, names: list[str]) -> Iterator[Case]:
    """A queue's file with the entries of another queue, in the place of its own."""
    for name in names:
        for other in names:
            if name[-20:] != other[-20:] or name == other or SCHEDULE_TOPIC in name + other:
                continue
            own, data = original.files[name], original.files[other]
            # Units behind its own end keep their slots, because somebody may have seen them.
            longer = len(data.rstrip(b"\0")) > len(own.rstrip(b"\0"))
            kind = LONGER if longer else "queue: entries of another queue"
            apply = partial(do.replace, name=name, data=data)
            yield Case(original.name, kind, f"{name} with the entries of {other}", apply)


def _index_bits(original: Original, rng: random.Random) -> Iterator[Case]:
    image, kind = original.name, "index: wrong header, zeroed range"
    for name in _names(original, "index"):
        count = int.from_bytes(original.files[name][36:40], "big")
        spans = [(f"header {field}", start, end) for field, start, end in _HEADER_FIELDS]
        slots = [
            slot
            for slot in range(INDEX_SLOTS)
            if any(original.files[name][INDEX_HEADER + 4 * slot : INDEX_HEADER + 4 * slot + 4])
        ]
        for slot in rng.sample(slots, min(8, len(slots))):
            at = INDEX_HEADER + 4 * slot
            spans.append((f"slot {slot}", at, at + 4))
        for number in rng.sample(range(1, count), min(10, count - 1)):
            at = INDEX_HEADER + 4 * INDEX_SLOTS + 20 * number
            spans += [
                (f"entry {number} {field}", at + start, at + end)
                for field, start, end in _ENTRY_FIELDS
            ]
        for what, start, end in spans:
            position, mask = rng.randrange(start, end), 1 << rng.randrange(8)
            apply = partial(do.flip_bits, name=name, bits=[(position, mask)])
            is_header = what.startswith("header")
            of_bit = kind if is_header else "index: wrong entry or slot"
            yield Case(image, of_bit, f"{name} {what} {position} bit {mask:#04x}", apply)
        size = len(original.files[name])
        for start, end in ((0, 40), (40, 240), (240, 512), (512, size), (0, size)):
            apply = partial(do.patch, name=name, position=start, data=bytes(end - start))
            yield Case(image, kind, f"{name} zeroed {start}..{end}", apply)


def _index_files(original: Original) -> Iterator[Case]:
    image = original.name
    names = _names(original, "index")
    for name in names:
        size = len(original.files[name])
        missing = "index: file missing" + ("" if original.flushed else NO_OFFSETS)
        yield Case(image, missing, name, partial(do.remove, name=name))
        for cut in (1, 40, size // 2, size - 1, size + 1):
            apply = partial(do.truncate, name=name, size=cut)
            yield Case(image, "index: file of a wrong size", f"{name} of {cut}", apply, file=name)
        apply = partial(do.truncate, name=name, size=0)
        yield Case(image, "index: empty file", name, apply)
        for what, damage in (("a directory", do.make_directory), ("a link to nothing", do.dangle)):
            apply = partial(damage, name=name)
            yield Case(image, "index: no file in its place", f"{name} is {what}", apply, file=name)
        yield Case(image, "index: file behind a link", name, partial(do.link, name=name))
        for target in ("index/19990101000000000", "index/20991231235959999"):
            apply = partial(do.replace, name=target, data=original.files[name])
            yield Case(image, "index: copy under another name", f"{name} to {target}", apply)
    for one, other in zip(names, names[1:] + names[:1], strict=True):
        apply = partial(do.swap, one=one, other=other)
        yield Case(image, "index: copy under another name", f"{one} and {other} swapped", apply)
    yield Case(image, "index: file missing", "index", partial(do.remove, name="index"))
    for path in ("index/notes", "index/2023111422132000", "index/20231114221320700.bak"):
        apply = partial(do.replace, name=path, data=b"mine")
        yield Case(image, "index: foreign name", path, apply, file=path)
