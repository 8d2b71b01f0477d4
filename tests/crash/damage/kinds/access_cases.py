"""Cases in which nothing is damaged, but the directory is not ours to write: somebody else has it
open, the file system is read-only, files belong to somebody else.

The last two need root: to mount, and to start the store as somebody who is not root.
"""

import contextlib
import ctypes
import fcntl
import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.crash.damage import case as do
from tests.crash.damage.case import NOBODY, Case
from tests.crash.damage.originals import Original
from tests.crash.damage.outcomes import TABLE, Outcome
from tests.crash.disks.mounts import unmount
from tests.tools import has

_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_libc = ctypes.CDLL(None, use_errno=True)
_FOLDERS = ("commitlog", "consumequeue", "index")


def access_cases(original: Original, _rng: random.Random) -> Iterator[Case]:
    yield from _in_use(original)
    if has("mount"):
        yield from _read_only(original)
    if os.geteuid() == 0:
        yield from _no_right(original)


def _nothing(root: Path) -> None:
    """Leave the files as they are."""


def _in_use(original: Original) -> Iterator[Case]:
    kind = "root: open in another process"
    yield Case(original.name, kind, "locked", _nothing, around=_locked)
    kind = "root: open in this process"
    around = partial(_opened, original)
    yield Case(original.name, kind, "open", _nothing, around=around)


@contextlib.contextmanager
def _opened(original: Original, root: Path) -> Iterator[None]:
    store = original.open(root)
    try:
        yield
    finally:
        assert store.close()


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Another process has byte 0 of `lock`, as RocketMQ and we take it."""
    ready, says = os.pipe()
    child = os.fork()
    if not child:
        file = os.open(root / "lock", os.O_RDWR)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        os.write(says, b"!")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"!"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(says)


def _read_only(original: Original) -> Iterator[Case]:
    for name in ("", *_FOLDERS):
        kind = "root: read-only file system" if not name else f"root: read-only {name}"
        around = partial(_mounted_read_only, name=name)
        yield Case(original.name, kind, name or "root", _nothing, file=name, around=around)


@contextlib.contextmanager
def _mounted_read_only(root: Path, name: str) -> Iterator[None]:
    target = root / name
    where = os.fsencode(target)
    assert _libc.mount(where, where, None, _MS_BIND, None) == 0
    try:
        assert _libc.mount(None, where, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY, None) == 0
        yield
    finally:
        unmount(target)


def _no_right(original: Original) -> Iterator[Case]:
    """The store belongs to who starts it, but for one name that may be read only, or not at all."""
    # The newest segment and the two before it may be written.
    young = original.segments()[-3]
    files = [*original.files, *original.directories, ""]
    for name in sorted(files):
        is_folder = name not in original.files
        if name.startswith(("config", "namesrv")) and not is_folder:
            continue  # tests/unit/store/recovery/test_start_checks.py has them
        for what, mode in (("read", 0o555 if is_folder else 0o444), ("no", 0)):
            label = name.partition("/")[0] if name else "root"
            if label == "commitlog" and not is_folder and name < young:
                label = "old commitlog"
            shape = "folder" if is_folder else "file"
            kind = f"access: {what} right to {label} {shape}"
            yield Case(
                original.name,
                kind,
                f"{name or 'root'} {mode:o}",
                partial(_give_away, name=name, mode=mode),
                file=name if TABLE[kind] is Outcome.REFUSED else "",
                as_nobody=True,
            )


def _give_away(root: do.Path, name: str, mode: int) -> None:
    for folder, names, leaves in os.walk(root):
        for one in (folder, *(f"{folder}/{leaf}" for leaf in (*names, *leaves))):
            os.chown(one, NOBODY, NOBODY)
    os.chmod(root / name, mode)
