"""Examines owners and modes of the files of a store, and of the files with passwords."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aerobee.access.files.account_files import AccountFiles
from aerobee.access.files.account_places import tools_file
from aerobee.cli.doctor.findings import Machine, fault, ok, unknown, warning
from aerobee.cli.documents.doctor import Finding
from aerobee.config.model import Settings

# A store of many queues has hundreds of thousands of files, mostly alike.
_FILES_MOST: Final = 20_000
_NAMED: Final = 3


def store_files(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """Those of the store that these settings name."""
    store = Path(settings.store_path)
    try:
        os.listdir(store)
    except FileNotFoundError:
        yield from _place(store)
        return
    except OSError as error:
        text = f"{_user()} may not look into it ({error.strerror}), so its files are not examined"
        yield unknown("store", str(store), text, "examine it as root, or as the broker's user")
        return
    folders = [store, *map(Path, settings.commit_log_directories)]
    for folder in _outermost(folders):
        yield from _owners(folder, machine)
    if machine.pid is None and os.path.exists(store / "abort"):
        yield warning(
            "store", str(store), "the last run did not end in order: a start recovers, which takes "
            "longer", "look at its last log lines; aerobee store verify reads all of it",
        )  # fmt: skip
    for path in _secret_files(settings):
        yield _secret(path)


def _place(store: Path) -> Iterator[Finding]:
    above = next((one for one in store.parents if os.path.exists(one)), Path("/"))
    if os.access(above, os.W_OK | os.X_OK):
        yield ok("store", str(store), f"does not exist yet, and {_user()} may make it")
    else:
        yield fault(
            "store", str(store), f"does not exist, and {_user()} may not make it in {above}",
            f"install -d -m 750 -o USER -g GROUP {shlex.quote(str(store))}",
        )  # fmt: skip


def _outermost(folders: list[Path]) -> list[Path]:
    """Those that lie in none of the others."""
    found = [one.resolve() for one in folders if os.path.exists(one)]
    return sorted({one for one in found if not any(other in one.parents for other in found)})


def _owners(folder: Path, machine: Machine) -> Iterator[Finding]:
    """Whether one user owns all of it, may use it, and others may not."""
    whose: Counter[int] = Counter()
    foreign: list[str] = []
    open_to_all: list[str] = []
    owner = _runs_as(folder, machine)
    count, is_whole = 0, True
    for path, found in _walk(folder):
        count += 1
        if count > _FILES_MOST:
            is_whole = False
            break
        whose[found.st_uid] += 1
        if found.st_uid != owner:
            foreign.append(path)
        if found.st_mode & stat.S_IWOTH:
            open_to_all.append(path)
    looked = f"{count} files" if is_whole else f"the first {_FILES_MOST} files"
    where = shlex.quote(str(folder))
    if foreign:
        text = (
            f"{len(foreign)} of {looked} belong to another user than {_name(owner)}, who runs the "
            f"broker: {_some(foreign)}. They often come from one start as root"
        )
        yield fault("owner", str(folder), text, f"chown -R {_name(owner)}: {where}")
    else:
        yield ok("owner", str(folder), f"{looked} belong to {_name(owner)}")
    if open_to_all:
        text = f"every user may change {len(open_to_all)} of {looked}: {_some(open_to_all)}"
        yield warning("mode", str(folder), text, f"chmod -R o-w {where}")
    else:
        yield ok("mode", str(folder), f"only owner and group may change {looked}")


def _runs_as(folder: Path, machine: Machine) -> int:
    """The user that the broker runs as; while none runs, the owner of the store."""
    for line in machine.of_process("status") or ():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return folder.stat().st_uid


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Each file and folder, links not followed; what goes meanwhile is passed over."""
    waiting = [str(folder)]
    yield str(folder), folder.stat()
    while waiting:
        try:
            entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.path, found
            if stat.S_ISDIR(found.st_mode):
                waiting.append(entry.path)


def _secret_files(settings: Settings) -> list[Path]:
    """The files of accounts and keys that a broker with these settings reads."""
    found = []
    if settings.acl_enabled or settings.nameserver_acl_enabled:
        found += account_paths(settings)
    if (path := credentials_path(settings)) is not None:
        found.append(path)
    return found


def account_paths(settings: Settings) -> list[Path]:
    """The files of accounts that a broker with these settings would read."""
    return AccountFiles(settings.rocketmq_home, settings.acl_file).paths()


def credentials_path(settings: Settings) -> Path | None:
    """The file that the broker signs its registrations with, as the daemon finds it; None without
    it."""
    named = settings.credentials_file
    return Path(settings.rocketmq_home) / named if named else tools_file(settings.rocketmq_home)


def _secret(path: Path) -> Finding:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return unknown("mode", str(path), f"it cannot be looked at: {error.strerror}")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        text = f"it holds keys of accounts, and every user may read it (mode {mode:04o})"
        return fault("mode", str(path), text, f"chmod -R o-rwx {shlex.quote(str(path))}")
    return ok("mode", str(path), f"it holds keys of accounts, and its mode is {mode:04o}")


def _some(paths: list[str]) -> str:
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _user() -> str:
    return _name(os.geteuid())


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
