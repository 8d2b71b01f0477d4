"""Cases in which a file is an older copy of itself, as a careless restore leaves it."""

import random
from collections.abc import Iterator
from functools import partial

from tests.crash.damage import case as do
from tests.crash.damage.case import Case
from tests.crash.damage.kinds.derived_cases import NO_OFFSETS
from tests.crash.damage.kinds.log_cases import hits, kind_of_loss
from tests.crash.damage.originals import SEGMENT, Original

_KINDS = {
    "consumequeue": "queue: older copy",
    "index": "index: older copy",
    "checkpoint": "checkpoint: wrong or missing",
    "offsets": "offsets: older copy",
}


def older_cases(original: Original, _rng: random.Random) -> Iterator[Case]:
    """Each file for itself, then each folder as a whole, at each of the earlier moments."""
    for moment, older in enumerate(original.older):
        for name, data in older.items():
            folder = name.partition("/")[0]
            if original.files.get(name, data) == data or folder == "config":
                continue
            what = f"{name} of moment {moment}"
            apply = partial(do.replace, name=name, data=data)
            if folder == "commitlog":
                yield _older_segment(original, name, data, what)
            else:
                yield Case(original.name, _kind(original, folder), what, apply)
        for folder in ("consumequeue", "index"):
            files = {name: data for name, data in older.items() if name.startswith(folder + "/")}
            apply = partial(_put_back, folder=folder, files=files)
            what = f"{folder} of moment {moment}"
            yield Case(original.name, _kind(original, folder), what, apply)


def _kind(original: Original, folder: str) -> str:
    unnoticed = folder == "index" and not original.flushed
    return _KINDS[folder] + (NO_OFFSETS if unnoticed else "")


def _older_segment(original: Original, name: str, data: bytes, what: str) -> Case:
    """Bytes that were written since are zeros again."""
    start = int(name[-20:])
    end = start + len(data.rstrip(b"\0"))
    lost = do.touched(original, [(end, start + SEGMENT)]) & hits(original, name)
    kind = kind_of_loss(original, lost, start + SEGMENT)
    return Case(original.name, kind, what, partial(do.replace, name=name, data=data), lost)


def _put_back(root: do.Path, folder: str, files: dict[str, bytes]) -> None:
    for path in sorted((root / folder).rglob("*"), reverse=True):
        if path.is_file():
            path.unlink()
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        do.replace(root, name, data)
