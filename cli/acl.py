"""`aerobee acl`: whether a file of accounts is right, and what an account may do by which line."""

import argparse

from aerobee.access.account_file import AccountFile, read_account_file
from aerobee.access.accounts import Rules
from aerobee.access.errors import AccountFileError
from aerobee.access.explain import explain
from aerobee.cli.output import OK, REFUSED, CommandFailed, printable, say


def check(parsed: argparse.Namespace) -> int:
    """Say what is wrong with a file, or what it has. Code 1 when a broker would not take it."""
    file = _read(parsed.file)
    rules = Rules(file.accounts, file.white)
    warnings = [*file.warnings]
    if (said := rules.open_to_all) is not None:
        warnings.append(f"{parsed.file}: {said}")
    for warning in warnings:
        say(f"warning: {warning}")
    if not rules.grants_something:
        say(f"aerobee: {parsed.file}: nobody may do anything by it; no broker starts with it alone")
        return REFUSED
    administrators = sum(one.admin for one in file.accounts)
    print(
        f"{parsed.file}: {len(file.accounts)} accounts, {administrators} of administrators, "
        f"{len(file.white)} white addresses, {len(warnings)} warnings"
    )
    return OK


def explain_account(parsed: argparse.Namespace) -> int:
    """What an account may do; for a topic or a group if one is named. And who needs no account."""
    files = [_read(path) for path in parsed.file]
    accounts = (one for file in files for one in file.accounts)
    account = next((one for one in accounts if one.access_key == parsed.account), None)
    if account is None:
        names = " or ".join(parsed.file)
        raise CommandFailed(f"there is no account {parsed.account} in {names}")
    for line in explain(account, parsed.topic, parsed.group):
        print(printable(line))
    for file in files:
        for address in file.white:
            who = f"whoever comes from {address.text}: everything, without an account"
            print(printable(f"{who} (globalWhiteRemoteAddresses of {file.path})"))
    return OK


def _read(path: str) -> AccountFile:
    try:
        return read_account_file(path)
    except AccountFileError as error:
        *others, last = error.faults
        for fault in others:
            say(f"aerobee: {fault}")
        raise CommandFailed(last) from None
