"""`aerobee acl`: whether a file of accounts is right, and what an account may do by which line."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from aerobee.access.accounts import Rules
from aerobee.access.errors import AccountFileError
from aerobee.access.explain import explain
from aerobee.access.files.account_file import AccountFile, read_account_file
from aerobee.access.files.account_files import files_below, together
from aerobee.cli.printing.output import OK, REFUSED, CommandFailed, say, show


def check(parsed: argparse.Namespace) -> int:
    """Say what is wrong with a file, or what it has; for a folder say it of each file, and of all
    together. Code 1 when a broker would not take it."""
    if Path(parsed.file).is_dir():
        return _check_folder(parsed.file)
    file = _read(parsed.file)
    rules = Rules(file.accounts, file.white)
    warnings = _warned(file, rules)
    if not rules.grants_something:
        _say_alone(parsed.file)
        return REFUSED
    show(f"{parsed.file}: {_counts(rules, warnings)}")
    return OK


def _check_folder(folder: str) -> int:
    paths = files_below(Path(folder))
    if not paths:
        raise CommandFailed(f"{folder}: no file of it ends in .yml or .yaml")
    files, warnings = [], 0
    for path in paths:
        try:
            file = _read(str(path))
        except CommandFailed as error:
            say(f"aerobee: {error}")
            continue
        files.append(file)
        rules = Rules(file.accounts, file.white)
        warned = _warned(file, rules)
        warnings += warned
        if rules.grants_something:
            show(f"{path}: {_counts(rules, warned)}")
        else:
            _say_alone(str(path))
    if len(files) < len(paths):
        missed = f"{len(paths) - len(files)} of {len(paths)} files cannot be taken"
        say(f"aerobee: {folder}: {missed}, and a broker takes all or none")
        return REFUSED
    rules, doubles = together(files)
    _say_warnings(doubles)
    if not rules.grants_something:
        what = f"nobody may do anything by its {len(files)} files"
        say(f"aerobee: {folder}: {what}; no broker starts with them alone")
        return REFUSED
    show(f"{folder}: {len(files)} files, {_counts(rules, warnings + len(doubles))}")
    return OK


def _counts(rules: Rules, warnings: int) -> str:
    administrators = sum(one.admin for one in rules.accounts.values())
    return (
        f"{len(rules.accounts)} accounts, {administrators} of administrators, "
        f"{len(rules.white)} white addresses, {warnings} warnings"
    )


def _warned(file: AccountFile, rules: Rules) -> int:
    """Say what a file is warned of, and how often it was."""
    open_to_all = rules.open_to_all
    more = () if open_to_all is None else (f"{file.path}: {open_to_all}",)
    _say_warnings((*file.warnings, *more))
    return len(file.warnings) + len(more)


def _say_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        say(f"warning: {warning}")


def _say_alone(path: str) -> None:
    say(f"aerobee: {path}: nobody may do anything by it; no broker starts with it alone")


def explain_account(parsed: argparse.Namespace) -> int:
    """Say what an account may do, for a named topic or group if any, and which peers need no
    account."""
    files = [_read(path) for named in parsed.file for path in _paths(named)]
    accounts = (one for file in files for one in file.accounts)
    account = next((one for one in accounts if one.access_key == parsed.account), None)
    if account is None:
        names = " or ".join(parsed.file)
        raise CommandFailed(f"there is no account {parsed.account} in {names}")
    for line in explain(account, parsed.topic, parsed.group):
        show(line)
    for file in files:
        for address in file.white:
            who = f"whoever comes from {address.text}: everything, without an account"
            show(f"{who} (globalWhiteRemoteAddresses of {file.path})")
    return OK


def _paths(named: str) -> list[str]:
    """The file, or those of a folder."""
    path = Path(named)
    return [str(one) for one in files_below(path)] if path.is_dir() else [named]


def _read(path: str) -> AccountFile:
    try:
        return read_account_file(path)
    except AccountFileError as error:
        *others, last = error.faults
        for fault in others:
            say(f"aerobee: {fault}")
        raise CommandFailed(last) from None
