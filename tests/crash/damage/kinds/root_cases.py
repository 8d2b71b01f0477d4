"""Cases that damage the small files of the root: checkpoint, offsets, lock, abort, strangers."""

import random
from collections.abc import Iterator
from functools import partial

from tests.crash.damage import case as do
from tests.crash.damage.case import Case
from tests.crash.damage.originals import Original

CHECKPOINT_BYTES = 4096


def root_cases(original: Original, rng: random.Random) -> Iterator[Case]:
    yield from _some(original, rng, ("foreign", "cut"), _checkpoint(original))
    yield from _some(original, rng, ("killed",), _offsets(original))
    yield from _lock(original)
    yield from _abort(original)
    yield from _strangers(original)


def _some(
    original: Original, rng: random.Random, all_of: tuple[str, ...], cases: Iterator[Case]
) -> Iterator[Case]:
    """All the cases of some originals, every fourth of the others."""
    found = list(cases)
    return iter(found if original.name in all_of else found[rng.randrange(4) :: 4])


def _checkpoint(original: Original) -> Iterator[Case]:
    image, name = original.name, "checkpoint"
    wrong = "checkpoint: wrong or missing"
    for position in range(24):
        for bit in range(8):
            apply = partial(do.flip_bits, name=name, bits=[(position, 1 << bit)])
            yield Case(image, wrong, f"byte {position} bit {bit}", apply)
    for size in (*range(26), 4095, 4097, 8192):
        yield Case(image, wrong, f"of {size}", partial(do.truncate, name=name, size=size))
    yield Case(image, wrong, "zeroed", partial(do.replace, name=name, data=bytes(4096)))
    yield Case(image, wrong, "ones", partial(do.replace, name=name, data=b"\xff" * 4096))
    yield Case(image, wrong, "future", partial(do.replace, name=name, data=b"\x7f" * 4096))
    yield Case(image, wrong, "missing", partial(do.remove, name=name))
    yield from _odd(image, "checkpoint", name)


def _offsets(original: Original) -> Iterator[Case]:
    image, name, wrong = original.name, "offsets", "offsets: wrong or missing"
    content = original.files.get(name)
    if content is None:
        return
    for position in range(len(content)):
        apply = partial(do.flip_bits, name=name, bits=[(position, 1 << position % 8)])
        yield Case(image, wrong, f"byte {position} bit {position % 8}", apply)
        yield Case(image, wrong, f"of {position}", partial(do.truncate, name=name, size=position))
    yield Case(image, wrong, "twice", partial(do.append, name=name, data=content))
    yield Case(image, wrong, "longer", partial(do.append, name=name, data=b"\0"))
    yield Case(image, wrong, "huge", partial(do.append, name=name, data=bytes(5 << 20)))
    yield Case(image, wrong, "missing", partial(do.remove, name=name))
    yield Case(image, wrong, "left-over", partial(do.replace, name=name + ".tmp", data=b"half"))
    yield from _odd(image, "offsets", name)


def _lock(original: Original) -> Iterator[Case]:
    image, name, wrong = original.name, "lock", "lock: wrong or missing"
    for data in (b"", b"l", b"loc", b"lock\n", b"\0\0\0\0", b"k" * 5000):
        yield Case(image, wrong, f"{data[:9]!r}", partial(do.replace, name=name, data=data))
    yield Case(image, wrong, "missing", partial(do.remove, name=name))
    yield from _odd(image, "lock", name)


def _abort(original: Original) -> Iterator[Case]:
    image, name = original.name, "abort"
    if name in original.files:
        yield Case(image, "abort: missing", "removed", partial(do.remove, name=name))
    for data in (b"", b"12345", bytes(5000)):
        apply = partial(do.replace, name=name, data=data)
        yield Case(image, "abort: there, whatever it holds", f"{len(data)} bytes", apply)
    yield from _odd(image, "abort", name)


def _odd(image: str, kind: str, name: str) -> Iterator[Case]:
    apply = partial(do.make_directory, name=name)
    yield Case(image, f"{kind}: a directory in its place", name, apply, file=name)
    yield Case(image, f"{kind}: a link to nothing", name, partial(do.dangle, name=name), file=name)
    if kind != "abort":
        yield Case(image, f"{kind}: behind a link", name, partial(do.link, name=name))


def _strangers(original: Original) -> Iterator[Case]:
    for path in ("notes.txt", "core", "lost+found", "checkpoint.bak", "offsets.old"):
        apply = partial(do.replace, name=path, data=b"mine")
        yield Case(original.name, "root: foreign name", path, apply)
