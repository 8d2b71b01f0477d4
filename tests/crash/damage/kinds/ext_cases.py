"""Cases that damage `consumequeue_ext`, which holds the tags codes of messages and nothing else."""

import random
from collections.abc import Iterator
from functools import partial

from tests.crash.damage import case as do
from tests.crash.damage.case import Case
from tests.crash.damage.originals import EXT_SETTINGS, Original

UNIT_BYTES = 20
_FIELDS = (("size", 0, 2), ("tags code", 2, 10), ("store time", 10, 18), ("map size", 18, 20))
_FOLDER = "consumequeue_ext"


def ext_cases(original: Original, rng: random.Random) -> Iterator[Case]:
    names = sorted(name for name in original.files if name.startswith(_FOLDER + "/"))
    assert names
    yield from list(_units(original, names))[rng.randrange(3) :: 3]
    yield from _addresses(original, rng)
    yield from _files(original, names)


def _units(original: Original, names: list[str]) -> Iterator[Case]:
    image = original.name
    for name in names:
        data = original.files[name].rstrip(b"\0")
        for unit in range(len(data) // UNIT_BYTES):
            for field, start, end in _FIELDS:
                kind = "ext: bit of a tags code" if field == "tags code" else "ext: wrong unit"
                for position in range(unit * UNIT_BYTES + start, unit * UNIT_BYTES + end):
                    bit = 1 << (position + unit) % 8
                    apply = partial(do.flip_bits, name=name, bits=[(position, bit)])
                    what = f"{name} {field} byte {position} bit {bit:#04x}"
                    yield Case(image, kind, what, apply)
        for size in (20, 40, 144):
            apply = partial(do.patch, name=name, position=0, data=bytes(size))
            yield Case(image, "ext: wrong unit", f"{name} {size} zeroed", apply)


def _addresses(original: Original, rng: random.Random) -> Iterator[Case]:
    """Flipped bits of the addresses in consume queue entries."""
    for name in sorted(original.files):
        if not name.startswith("consumequeue/"):
            continue
        for unit in range(len(original.files[name].rstrip(b"\0")) // UNIT_BYTES):
            position = unit * UNIT_BYTES + rng.randrange(12, 20)
            mask = 1 << rng.randrange(8)
            apply = partial(do.flip_bits, name=name, bits=[(position, mask)])
            what = f"{name} {position} bit {mask:#04x}"
            yield Case(original.name, "ext: wrong address in an entry", what, apply)


def _files(original: Original, names: list[str]) -> Iterator[Case]:
    image = original.name
    gone = "ext: file missing, empty or older"
    for name in names:
        yield Case(image, gone, name, partial(do.remove, name=name))
        yield Case(image, gone, f"{name} empty", partial(do.truncate, name=name, size=0))
        full = EXT_SETTINGS["consume_queue_ext_segment_bytes"]
        assert isinstance(full, int)
        for size in (1, 20, full - 1, full + 1, 2 * full):
            apply = partial(do.truncate, name=name, size=size)
            yield Case(image, "ext: file of a wrong size", f"{name} of {size}", apply, file=name)
        odd = "ext: no file in its place"
        yield Case(
            image, odd, f"{name} a directory", partial(do.make_directory, name=name), file=name
        )
        yield Case(
            image, odd, f"{name} a link to nothing", partial(do.dangle, name=name), file=name
        )
        yield Case(image, "ext: file behind a link", name, partial(do.link, name=name))
        following = f"{name[:-20]}{int(name[-20:]) + 50 * full:020d}"
        apply = partial(do.replace, name=following, data=original.files[name])
        yield Case(image, "ext: copy under another name", f"{name} to {following}", apply)
    for one, other in zip(names, names[1:] + names[:1], strict=True):
        apply = partial(do.swap, one=one, other=other)
        yield Case(image, "ext: files swapped", f"{one} and {other}", apply)
    for directory in original.directories:
        if directory.startswith(_FOLDER):
            yield Case(image, gone, directory, partial(do.remove, name=directory))
    for moment, older in enumerate(original.older):
        for name in names:
            if name in older and older[name] != original.files[name]:
                apply = partial(do.replace, name=name, data=older[name])
                yield Case(image, gone, f"{name} of moment {moment}", apply)
    for path in (f"{_FOLDER}/notes", f"{_FOLDER}/Orders/notes", f"{_FOLDER}/Orders/0/notes"):
        apply = partial(do.replace, name=path, data=b"mine")
        yield Case(image, "ext: foreign name", path, apply)
