"""Accounts and the rules that are in force: values, made by `account_file`, asked by `control`.

A right that is named for a topic or a group counts more than the account's default; without either
the account has no right. An administrator for whom no topic and no group is named may do
everything; if a topic or a group is named, the administrator is judged like others (upstream:
PlainPermissionManager).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from aerobee.access.rights import DENY, PUB, SUB, allows
from aerobee.address_patterns import AddressPattern
from aerobee.protocol.frames.signature import Signer
from aerobee.protocol.names import DLQ_PREFIX, HIDDEN_TOPICS

TOPIC, GROUP = "topic", "group"
#: Both keys of an account have more characters than this (the reference's rule).
LONGER_THAN = 6
# Answers that are remembered: an address has one while the rules are the same.
_KNOWN_ADDRESSES = 4096
# Signers that are remembered, 700 bytes each.
_KNOWN_SIGNERS = 4096


class Need(NamedTuple):
    """One right that a request needs: on a topic or a group (`TOPIC`, `GROUP`), by its name."""

    kind: str
    name: str
    right: int


class Grant(msgspec.Struct, frozen=True, gc=False):
    """A right and the line of the file that gives it; line 0: no line does."""

    right: int
    line: int


NO_GRANT: Final = Grant(DENY, 0)
NO_LINES: Final[Mapping[str, Grant]] = {}
NO_ADDRESS: Final = AddressPattern(None)


class Account(msgspec.Struct, frozen=True, gc=False):
    """One account. There may be 50,000, so of nothing that the collector of garbage looks at, and
    what most have alike is the same object. Shown without its secret key."""

    access_key: str
    secret_key: str
    admin: bool
    addresses: AddressPattern
    default_topic: Grant
    default_group: Grant
    topics: Mapping[str, Grant]
    groups: Mapping[str, Grant]
    path: str
    line: int

    def __repr__(self) -> str:
        return f"Account({self.access_key!r}, {self.path!r}, {self.line})"

    @property
    def signer(self) -> Signer:
        """Made of the secret key, and remembered where it is asked for often."""
        return _signer(self.secret_key)

    @property
    def may_everything(self) -> bool:
        """An administrator whom no line holds to some topics or groups."""
        return self.admin and not self.topics and not self.groups

    def grant(self, kind: str, name: str) -> Grant:
        """The line that decides about a topic or a group. Where messages of all topics wait, only
        a line of its own gives a right: a default is meant for users' topics. Dead letters
        without a line of their own are the group's, as its retries are."""
        if kind == GROUP:
            return self.groups.get(name, self.default_group)
        own = self.topics.get(name)
        if own is not None:
            return own
        if name.startswith(DLQ_PREFIX):
            of_group = self.grant(GROUP, name.removeprefix(DLQ_PREFIX))
            right = PUB | SUB if allows(of_group.right, SUB) else DENY
            return Grant(right, of_group.line)
        return NO_GRANT if name in HIDDEN_TOPICS else self.default_topic

    def has(self, need: Need) -> bool:
        """Whether the account has a right."""
        return self.may_everything or allows(self.grant(need.kind, need.name).right, need.right)

    @property
    def sends_somewhere(self) -> bool:
        """Whether there is a topic that it may send to."""
        grants = (self.default_topic, *self.topics.values())
        return self.may_everything or any(allows(one.right, PUB) for one in grants)

    @property
    def grants_something(self) -> bool:
        """Whether there is anything that it may do."""
        given = (self.default_topic, self.default_group, *self.topics.values())
        return (
            self.admin
            or bool(self.addresses.text)
            or any(not one.right & DENY for one in (*given, *self.groups.values()))
        )


def administrator_account(access_key: str, secret_key: str) -> Account:
    """One that no file has: of a server's own process."""
    lines, none = NO_LINES, NO_GRANT
    return Account(access_key, secret_key, True, NO_ADDRESS, none, none, lines, lines, "", 0)


@lru_cache(maxsize=_KNOWN_SIGNERS)
def _signer(secret_key: str) -> Signer:
    return Signer(secret_key)


class Rules:
    """The rules in force: all accounts by their keys, and the addresses that need no account."""

    def __init__(
        self, accounts: Iterable[Account] = (), white: Iterable[AddressPattern] = ()
    ) -> None:
        self.accounts = {account.access_key: account for account in accounts}
        self.white = tuple(white)
        #: The rule that lets everybody in, from any address and unsigned; None without such a rule.
        self.open_to_all = self._open_to_all()
        self._white: dict[str, bool] = {}

    def beside(self, accounts: Iterable[Account]) -> Rules:
        """These rules with more accounts."""
        return Rules((*self.accounts.values(), *accounts), self.white)

    def is_white(self, address: str) -> bool:
        """Whether whoever comes from there may do everything, without a key."""
        known = self._white.get(address)
        if known is None:
            if len(self._white) >= _KNOWN_ADDRESSES:
                self._white.clear()
            known = any(pattern.matches(address) for pattern in self.white)
            self._white[address] = known
        return known

    def _open_to_all(self) -> str | None:
        for pattern in self.white:
            if pattern.is_every:
                return (
                    f"globalWhiteRemoteAddresses has {pattern.text}: whoever reaches the port may "
                    "do everything, without an account"
                )
        for account in self.accounts.values():
            if account.addresses.is_every:
                text = account.addresses.text
                return (
                    f"account {account.access_key} has whiteRemoteAddress {text}: whoever knows "
                    "its access key may do everything, without a signature"
                )
        return None

    @property
    def grants_something(self) -> bool:
        """Whether anybody may do anything."""
        return bool(self.white) or any(one.grants_something for one in self.accounts.values())
