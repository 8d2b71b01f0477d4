"""All files of accounts of a broker, and the rules that they make together.

RocketMQ's places: below its home, or without one below the directory that the server runs in, the
file `conf/plain_acl.yml`, or another file that is named, and every `.yml` and `.yaml` file below
the folder `conf/acl`. Of an account that several files have, the first file counts; the folder's
files come first, in the order of their names.

Files are taken together or not at all: while one of them is damaged, half written, or all of them
grant nothing to anybody, the rules before stay in force. Called on a worker's thread; files are
read there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from aerobee.access.accounts import Account, Grant, Rules
from aerobee.access.errors import AccountFileError
from aerobee.access.files.account_file import MAX_BYTES, AccountFile, read_account_file
from aerobee.access.files.account_places import DEFAULT_FILE, FOLDER
from aerobee.access.pauses import NO_PAUSES, Pauses
from aerobee.access.rights import right_name

# Where a name is shown instead of a secret.
_SECRET: Final = "secretKey"

#: Accounts of all files together, which have MAX_BYTES together, too (docs/limits.md).
MAX_ACCOUNTS: Final = 50_000

#: A value that differs after a file was changed, made or removed.
Stamp: TypeAlias = tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of all files together."""

    rules: Rules
    files: tuple[AccountFile, ...]
    warnings: tuple[str, ...]
    stamp: Stamp


class AccountFiles:
    """Where the files are."""

    def __init__(self, home: str, named: str = "") -> None:
        """`home` is RocketMQ's, empty for the working directory; `named` the file instead of
        conf/plain_acl.yml, below home if it is no whole path. One that is, where there is no home,
        stands alone: who may write to the directory of the start is not asked."""
        self._has_home = bool(home)
        self._home = Path(home)
        self._has_folder = self._has_home or not Path(named).is_absolute()
        self.default = self._home / (named or DEFAULT_FILE)

    def paths(self) -> list[Path]:
        """The files that there are; the default one last, there or not."""
        # Home may be a whole path, and the named one not.
        default = self.default.absolute()
        found = files_below(self._home / FOLDER) if self._has_folder else []
        return [*(path for path in found if path.absolute() != default), self.default]

    def name_of(self, path: str) -> str:
        """A file as answers name it: below its home, never the machine's whole path."""
        is_bare = not self._has_home and Path(path) == self.default
        return self.default.name if is_bare else os.path.relpath(path, self._home)

    def path_of(self, name: str) -> Path | None:
        """The file that a request names, by whole path or as `name_of` does; None for any other
        name. No name from outside is looked for on the disk."""
        if not name:
            return self.default
        known = {key: path for path in self.paths() for key in (str(path), self.name_of(str(path)))}
        return known.get(name)

    def stamp(self) -> Stamp:
        """The stamp of all files as they are now."""
        return tuple(_stamp(path) for path in self.paths())

    def load(self, pauses: Pauses = NO_PAUSES) -> Loaded:
        """Read all files, with `pauses` where a loop runs beside. Raises AccountFileError for any
        that is wrong, for more than may be, and if nobody may do anything by them."""
        paths = self.paths()
        # Before reading: a change in between is read again.
        stamp = tuple(_stamp(path) for path in paths)
        _check_bytes(stamp)
        files = tuple(read_account_file(str(path), pauses) for path in paths if _is_there(path))
        _check_count(files)
        if not files:
            where = "" if self._has_home else " (ROCKETMQ_HOME is not set)"
            raise AccountFileError(
                f"{self.default.absolute()}: no file of accounts is there{where}; make one, or "
                "name it with aclFile"
            )
        rules, doubles = together(files)
        if not rules.grants_something:
            raise AccountFileError(
                f"{self.default}: nobody may do anything by the files of accounts"
                f"{_why_nothing(files, doubles)}"
            )
        warnings = [*(warning for file in files for warning in file.warnings), *doubles]
        if (said := rules.open_to_all) is not None:
            warnings.append(said)
        return Loaded(rules, files, tuple(warnings), stamp)


def _check_bytes(stamp: Stamp) -> None:
    total = sum(size for _, _, _, size, _ in stamp)
    if total > MAX_BYTES:
        raise AccountFileError(
            f"{stamp[-1][0]}: the files of accounts have {total} bytes together, the limit is "
            f"{MAX_BYTES} ({MAX_BYTES >> 20} MiB)"
        )


def _check_count(files: Sequence[AccountFile]) -> None:
    total = 0
    for file in files:
        total += len(file.accounts)
        if total > MAX_ACCOUNTS:
            raise AccountFileError(
                f"{file.path}: with it the files have {total} accounts, the limit is {MAX_ACCOUNTS}"
            )


def files_below(folder: Path) -> list[Path]:
    """Every .yml and .yaml file below a folder, in the order that counts; none if there is no such
    folder. One that cannot be looked into is in the list itself, so that reading it says why."""
    found: list[Path] = []

    def keep(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            found.append(Path(error.filename))

    for inside, _, names in os.walk(folder, onerror=keep):
        found += [Path(inside) / name for name in names if name.endswith((".yml", ".yaml"))]
    return sorted(found)


def together(files: Sequence[AccountFile]) -> tuple[Rules, list[str]]:
    """The rules that files make in this order, and a warning of each account that is in several."""
    doubles: list[str] = []
    accounts = list(_first_of_each(files, doubles))
    return Rules(accounts, [pattern for file in files for pattern in file.white]), doubles


def _why_nothing(files: Sequence[AccountFile], doubles: Sequence[str]) -> str:
    """Why files may grant nothing: a warning that takes something, never just any."""
    causes = [*(cause for file in files for cause in file.causes), *doubles]
    if causes:
        return f": {causes[0]}"
    if any(file.accounts for file in files):
        return "; no account of theirs has a right, or is an administrator"
    return "; is it empty, or half written?"


def _first_of_each(files: Sequence[AccountFile], warnings: list[str]) -> Iterator[Account]:
    first: dict[str, str] = {}
    for file in files:
        for account in file.accounts:
            path = first.setdefault(account.access_key, file.path)
            if path == file.path:
                yield account
            else:
                warnings.append(
                    f"{file.path}:{account.line}: account {account.access_key} is in {path} too, "
                    "that one counts"
                )


def _is_there(path: Path) -> bool:
    """Whether a file is to be read; what cannot be told is, so that reading says why it cannot."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _stamp(path: Path) -> tuple[str, int, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (str(path), 0, 0, 0, 0)
    # The time of the inode moves with rights and owner too.
    return (str(path), found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def differences(before: Rules, after: Rules, pauses: Pauses = NO_PAUSES) -> Iterator[str]:
    """Describe the changes between two states of the rules, a line each; no line has a secret."""
    old, new = before.accounts, after.accounts
    for key in sorted(old.keys() - new.keys()):
        yield f"- account {key}"
    for key in sorted(new.keys() - old.keys()):
        yield f"+ account {key}"
    for key in sorted(old.keys() & new.keys()):
        pauses.take()
        yield from (f"~ account {key}: {what}" for what in _changes(old[key], new[key]))
    white = {one.text for one in before.white}, {one.text for one in after.white}
    yield from (f"- white address {text}" for text in sorted(white[0] - white[1]))
    yield from (f"+ white address {text}" for text in sorted(white[1] - white[0]))


def _changes(old: Account, new: Account) -> Iterator[str]:
    if old.secret_key != new.secret_key:
        yield f"another {_SECRET}"
    if old.admin != new.admin:
        yield f"admin {old.admin} -> {new.admin}"
    if old.addresses.text != new.addresses.text:
        yield f"whiteRemoteAddress {old.addresses.text!r} -> {new.addresses.text!r}"
    for what, was, now in (
        ("defaultTopicPerm", {"": old.default_topic}, {"": new.default_topic}),
        ("defaultGroupPerm", {"": old.default_group}, {"": new.default_group}),
        ("topic", old.topics, new.topics),
        ("group", old.groups, new.groups),
    ):
        for name in sorted(was.keys() | now.keys()):
            left, right = _right(was.get(name)), _right(now.get(name))
            if left != right:
                yield f"{what} {name}".rstrip() + f" {left} -> {right}"


def _right(grant: Grant | None) -> str:
    return "-" if grant is None else right_name(grant.right)
