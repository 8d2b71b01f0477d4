"""Cases that damage the tables kept as JSON: cut, flipped, of another shape, swapped, missing."""

import random
from collections.abc import Iterator
from functools import partial

from tests.crash.damage import case as do
from tests.crash.damage.case import Case
from tests.crash.damage.originals import Original
from tests.crash.damage.tables import LIGHT, LOADERS, MEMBERS, OFFSETS

_CUTS, _FLIPS = 60, 120


def config_cases(original: Original, rng: random.Random) -> Iterator[Case]:
    names = list(LOADERS)
    for name in names:
        yield from _damaged(original, rng, name)
        yield from _shapes(original, name)
        yield from _files(original, name)
        yield from _strangers(original, name)
    for one, other in zip(names, names[1:] + names[:1], strict=True):
        tables = tuple(sorted({one, other}))
        kind = "config: file of another table"
        if set(tables) == {LIGHT, OFFSETS}:
            kind = "config: one table of offsets for the other"
        apply = partial(do.swap, one=one, other=other)
        yield Case(original.name, kind, f"{one} and {other} swapped", apply, tables=tables)
    tables = tuple(name for name in names if name.startswith("config/"))
    apply = partial(do.remove, name="config")
    yield Case(original.name, "config: missing with its backup", "config", apply, tables=tables)


def _damaged(original: Original, rng: random.Random, name: str) -> Iterator[Case]:
    image, content, tables = original.name, original.files[name], (name,)
    kind = "config: damaged file"
    lengths = {0, 1, 2, len(content) - 1, *rng.sample(range(len(content)), min(_CUTS, 80))}
    for size in sorted(lengths):
        apply = partial(do.truncate, name=name, size=size)
        yield Case(image, kind, f"{name} cut at {size}", apply, tables=tables)
    for position in sorted(rng.sample(range(len(content)), min(_FLIPS, len(content)))):
        bit = 1 << rng.randrange(8)
        apply = partial(do.flip_bits, name=name, bits=[(position, bit)])
        what = f"{name} byte {position} bit {bit:#04x}"
        yield Case(image, "config: flipped bit", what, apply, tables=tables)
    for what, data in (
        ("zeros", bytes(len(content))), ("ones", b"\xff" * len(content)),
        ("twice", content + content), ("first half twice", content[: len(content) // 2] * 2),
    ):  # fmt: skip
        apply = partial(do.replace, name=name, data=data)
        yield Case(image, kind, f"{name} {what}", apply, tables=tables)


def _shapes(original: Original, name: str) -> Iterator[Case]:
    """JSON, or nearly, that is not what the file has to hold."""
    key = MEMBERS[name][0].encode()
    values = (b"null", b"1", b'"x"', b"[]", b"[1]", b"true", b'{"x":1}', b'{"x":null}', b'{"x":[]}',
              b'{"x":"y"}')  # fmt: skip
    documents = [
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"[[]]",
        b"{}",
        b'{"dataVersion":{}}',
        b'{"other":{}}',
    ]
    documents += [b'{"%b":%b}' % (key, value) for value in values]
    documents += [
        b"[" * 10_000 + b"]" * 10_000,
        b'{"x":' * 10_000,
        b'{"%b":' % key + b'{"x":' * 40 + b"1" + b"}" * 41,
        b'{"%b":{"\xff\xfe":{}}}' % key,
        b'{"%b":{"x@y":{"0":1e999}}}' % key,
        b'{"%b":{"x@y":{"0":99999999999999999999}}}' % key,
    ]
    for number, data in enumerate(documents):
        apply = partial(do.replace, name=name, data=data)
        what = f"{name} shape {number} {data[:40]!r}"
        yield Case(original.name, "config: another shape", what, apply, tables=(name,))


def _files(original: Original, name: str) -> Iterator[Case]:
    image, backup, tables = original.name, name + ".bak", (name,)
    content = original.files[name]
    missing = "config: missing, its backup is there"
    yield Case(image, missing, name, partial(do.remove, name=name), tables=tables)
    apply = partial(do.dangle, name=name)
    yield Case(image, missing, f"{name} a link to nothing", apply, tables=tables)

    def both(root: do.Path, data: bytes | None, other: bytes | None) -> None:
        for one, new in ((name, data), (backup, other)):
            if new is None:
                do.remove(root, one)
            else:
                do.replace(root, one, new)

    for what, data, other in (
        ("both cut", content[:30], content[:20]), ("both zeros", bytes(50), bytes(50)),
        ("missing, backup cut", None, content[:20]), ("cut, backup missing", content[:20], None),
        ("empty, backup missing", b"", None), ("both empty", b"", b""),
        ("missing, backup empty", None, b""),
    ):  # fmt: skip
        apply = partial(both, data=data, other=other)
        kind = "config: no file can be read"
        yield Case(image, kind, f"{name} {what}", apply, tables=tables)
    apply = partial(both, data=None, other=None)
    yield Case(image, "config: missing with its backup", name, apply, tables=tables)
    kind = "config: a directory in its place"
    yield Case(image, kind, name, partial(do.make_directory, name=name), tables=tables)
    apply = partial(_cut_with_directory, name=name)
    yield Case(image, kind, backup, apply, tables=tables)


def _strangers(original: Original, name: str) -> Iterator[Case]:
    image, kind = original.name, "config: left-over file, or behind a link"
    yield Case(image, kind, f"{name} behind a link", partial(do.link, name=name))
    folder = name.rpartition("/")[0]
    for path, data in (
        (name + ".tmp", b'{"half'), (name + ".orig", b"x"), (f"{folder}/notes", b"mine"),
        (name + ".bak", b"rubbish"),
    ):  # fmt: skip
        apply = partial(do.replace, name=path, data=data)
        yield Case(image, kind, f"{name} beside {path}", apply)


def _cut_with_directory(root: do.Path, name: str) -> None:
    """The file is damaged and its backup is a directory."""
    do.truncate(root, name, 10)
    do.make_directory(root, name + ".bak")
