"""Reads one file of accounts, RocketMQ's plain_acl.yml or one of its folder conf/acl.

    globalWhiteRemoteAddresses:
      - 10.1.2.*
    accounts:
      - accessKey: rocketmq2
        secretKey: "12345678"
        whiteRemoteAddress: 192.168.1.*
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms:
          - orders=PUB|SUB
        groupPerms:
          - readers=SUB
    dataVersion:
      - counter: 1
        timestamp: 1700000000000

Its accounts are read one after the other (`account_nodes.py`), with pauses where a loop runs beside
(`pauses.py`). What the reference takes in silence and does not do, an unknown word, a
right that it reads as DENY, a text that YAML reads as something else, is a warning.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import yaml

from aerobee.access.accounts import LONGER_THAN, NO_ADDRESS, NO_GRANT, NO_LINES, Account, Grant
from aerobee.access.errors import AccountFileError
from aerobee.access.files.account_nodes import ListNode, Member, NoYaml, members_of
from aerobee.access.pauses import NO_PAUSES, Pauses
from aerobee.access.rights import is_right, parse_right
from aerobee.address_patterns import AddressPattern

_T = TypeVar("_T")

#: A file that is larger is refused before it is parsed: 20,000 accounts have room in it.
MAX_BYTES: Final = 8 << 20
#: Names and list entries of one file, each counted as often as an alias repeats it. As many as a
#: file of the largest size has without aliases; with some it could have billions.
MAX_ENTRIES: Final = 1 << 20
#: Faults that are collected before the rest of a file is left unread.
MAX_FAULTS: Final = 100
# Characters of an unknown word that an error shows.
_SHOWN: Final = 64
_MAP, _LIST, _TEXT = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:str"
NULL, BOOL, _INT = (f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int"))
_MERGE: Final = "tag:yaml.org,2002:merge"
#: Texts of a BOOL that mean yes, in any case.
TRUE: Final = frozenset({"true", "yes", "on"})
# And those of a text that mean either.
_FALSE: Final = frozenset({"false", "no", "off", ""})
_WHITE, _ACCOUNTS, _VERSION = "globalWhiteRemoteAddresses", "accounts", "dataVersion"
_OF_ACCOUNT: Final = frozenset(
    {
        *("accessKey", "secretKey", "whiteRemoteAddress", "admin"),
        *("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"),
    }
)


@dataclass(frozen=True, slots=True)
class AccountFile:
    """The content of a file. `counter` and `timestamp` are its data version, the time in ms;
    `causes` are the warnings by which somebody may have less than the file seems to give."""

    path: str
    accounts: tuple[Account, ...] = ()
    white: tuple[AddressPattern, ...] = ()
    counter: int = 0
    timestamp: int = 0
    warnings: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


def read_account_file(path: str, pauses: Pauses = NO_PAUSES) -> AccountFile:
    """Raises AccountFileError for what cannot be read, OSError included."""
    try:
        # Without O_NONBLOCK the open of a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise AccountFileError(f"{path}: is no regular file")
            with open(descriptor, "rb", closefd=False) as opened:
                content = opened.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise AccountFileError(f"{path}: {error.strerror}") from error
    file = parse_account_file(path, content, pauses)
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return file
    loose = f"{path}: others on this machine can read its secret keys; chmod 600"
    return replace(file, warnings=(*file.warnings, loose))


def parse_account_file(path: str, content: bytes, pauses: Pauses = NO_PAUSES) -> AccountFile:
    """Parse the content of a file; `path` is for the errors."""
    if len(content) > MAX_BYTES:
        raise AccountFileError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
    return _Reader(path, pauses).read(content)


class _Said:
    """Warnings and faults of a part of a file; an account, a right or an address has one fault."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.causes: list[str] = []
        self.faults: list[str] = []

    def add(self, other: _Said) -> None:
        self.warnings += other.warnings
        self.causes += other.causes
        self.faults += other.faults


class _Reader:
    """Reads one file."""

    def __init__(self, path: str, pauses: Pauses) -> None:
        self._path = path
        self._pauses = pauses
        self._entries_left = MAX_ENTRIES
        self._said = _Said()
        # Accounts name the same topics and groups.
        self._names: dict[str, str] = {}

    def read(self, content: bytes) -> AccountFile:
        of_accounts = _Said()
        members: dict[str, tuple[int, yaml.Node | None]] = {}
        accounts: list[Account] = []
        refused: tuple[str, ...] = ()
        for key, value in self._top(content):
            name = self._key(key, members)
            members[name] = (
                key.start_mark.line + 1,
                None if isinstance(value, ListNode) else value,
            )
            if name != _ACCOUNTS:
                continue
            # The report begins with the rest of the file, wherever the accounts stand in it.
            before, self._said = self._said, of_accounts
            try:
                accounts.extend(self._accounts(value))
            except NoYaml:
                raise
            except AccountFileError as error:
                refused = error.faults
            self._said = before
        for name, (line, _) in members.items():
            if name not in (_WHITE, _ACCOUNTS, _VERSION):
                self._warn(line, f"{_shown(name)} is no word of a file of accounts")
        counter, timestamp = self._version(_of(members, _VERSION))
        self._said.add(of_accounts)
        white: tuple[AddressPattern, ...] = ()
        if not refused:
            try:
                white = tuple(self._white(_of(members, _WHITE)))
            except AccountFileError as error:
                refused = error.faults
        if faults := (*self._said.faults, *refused):
            raise AccountFileError(*faults)
        said = tuple(self._said.warnings), tuple(self._said.causes)
        return AccountFile(self._path, tuple(accounts), white, counter, timestamp, *said)

    def _top(self, content: bytes) -> Iterator[Member]:
        """The members of the file, each counted."""
        top = members_of(self._path, content, _ACCOUNTS)
        if top is None or (isinstance(top, yaml.Node) and top.tag == NULL):
            return
        if isinstance(top, yaml.Node):
            yield from self._pairs(top, "the file")
            return
        for key, value in top:
            self._count_one(key)
            yield key, value

    def _each(self, nodes: Iterable[yaml.Node], read: Callable[[yaml.Node], _T]) -> Iterator[_T]:
        """Read each node; leave out a wrong node and keep its fault."""
        for node in nodes:
            if len(self._said.faults) >= MAX_FAULTS:
                return
            try:
                found = read(node)
            except AccountFileError as error:
                self._said.faults += error.faults
            else:
                yield found

    # --- nodes

    def _members(self, node: yaml.Node, what: str) -> dict[str, tuple[int, yaml.Node]]:
        found: dict[str, tuple[int, yaml.Node]] = {}
        for key, value in self._pairs(node, what):
            found[self._key(key, found)] = (key.start_mark.line + 1, value)
        return found

    def _pairs(self, node: yaml.Node, what: str) -> list[tuple[yaml.Node, yaml.Node]]:
        if node.tag != _MAP or not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, f"{what} must be a map of names and values")
        self._count(node)
        return list(node.value)

    def _key(self, key: yaml.Node, found: Mapping[str, object]) -> str:
        """The name of a member; a fault if it is among those `found`."""
        if key.tag == _MERGE:
            # No warning: RocketMQ reads them, and what is merged may take rights away.
            raise self._wrong(key, "merges (<<) are not read; write out what is merged")
        name = self._text(key, "a name")
        if name in found:
            raise self._wrong(key, f"{_shown(name)} is there twice")
        return name

    def _items(self, node: yaml.Node | ListNode | None, what: str) -> Iterable[yaml.Node]:
        if isinstance(node, ListNode):
            return self._counted(node)
        if node is None or node.tag == NULL:
            return []
        if node.tag != _LIST or not isinstance(node, yaml.SequenceNode):
            raise self._wrong(node, f"{what} must be a list")
        self._count(node)
        return list(node.value)

    def _counted(self, listed: ListNode) -> Iterator[yaml.Node]:
        for node in listed.items:
            self._count_one(listed)
            yield node

    def _count(self, node: yaml.MappingNode | yaml.SequenceNode) -> None:
        self._count_one(node, len(node.value))

    def _count_one(self, node: yaml.Node | ListNode, count: int = 1) -> None:
        self._entries_left -= count
        if self._entries_left < 0:
            raise self._wrong(node, f"more than {MAX_ENTRIES} entries, those of aliases counted")

    def _text(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._wrong(node, f"{what} must be a text")
        text: str = node.value
        if not _is_utf8(text):
            raise self._wrong(node, f"{what} has half of a pair of surrogates, which is no text")
        if node.tag not in (_TEXT, NULL) and not (node.tag == _INT and _is_plain_number(text)):
            self._warn(
                node.start_mark.line + 1,
                f"{what} is no text to YAML, and RocketMQ may read another one; put it in quotes",
                takes=False,
            )
        return text

    def _optional(self, node: yaml.Node | None, what: str) -> str | None:
        if node is None or node.tag == NULL:
            return None
        return self._text(node, what)

    # --- what is in it

    def _accounts(self, listed: yaml.Node | ListNode) -> Iterator[Account]:
        known: set[str] = set()
        for account in self._each(self._items(listed, _ACCOUNTS), self._account):
            self._pauses.take()
            if account.access_key in known:
                self._warn(
                    account.line, f"account {account.access_key} is there twice, the first counts"
                )
                continue
            known.add(account.access_key)
            yield account

    def _account(self, node: yaml.Node) -> Account:
        members = self._members(node, "an account")
        key = self._optional(_of(members, "accessKey"), "accessKey")
        secret = self._optional(_of(members, "secretKey"), "secretKey")
        for name, text in (("accessKey", key), ("secretKey", secret)):
            if text is None:
                raise self._wrong(node, f"{name} is missing")
            if len(text) <= LONGER_THAN:
                raise self._wrong(node, f"{name} must have more than {LONGER_THAN} characters")
        assert key is not None
        assert secret is not None
        for name, (line, _) in members.items():
            if name not in _OF_ACCOUNT:
                self._warn(line, f"account {key}: {_shown(name)} is no word of an account")
        return Account(
            key,
            secret,
            self._flag(members, "admin", key),
            self._pattern(_of(members, "whiteRemoteAddress")),
            self._default(members, "defaultTopicPerm", key),
            self._default(members, "defaultGroupPerm", key),
            dict(self._perms(members, "topicPerms", key)) or NO_LINES,
            dict(self._perms(members, "groupPerms", key)) or NO_LINES,
            self._path,
            node.start_mark.line + 1,
        )

    def _flag(self, members: Mapping[str, tuple[int, yaml.Node]], name: str, key: str) -> bool:
        line, node = members.get(name, (0, None))
        what = f"account {key}: {name}"
        text = self._optional(node, what) if node is None or node.tag != BOOL else node.value
        word = (text or "").lower()
        if word not in TRUE and word not in _FALSE:
            self._warn(line, f"{what} is neither true nor false, and counts as false")
        return word in TRUE

    def _pattern(self, node: yaml.Node | None) -> AddressPattern:
        if node is None:
            return NO_ADDRESS
        try:
            pattern = AddressPattern(self._optional(node, "an address"))
        except ValueError as error:
            raise self._wrong(node, str(error)) from None
        if meant := pattern.means_more:
            self._warn(
                node.start_mark.line + 1,
                f"address {pattern.text!r} means {meant}: as with RocketMQ, what follows the first "
                "range is not looked at",
                takes=False,
            )
        return pattern

    def _default(self, members: Mapping[str, tuple[int, yaml.Node]], name: str, key: str) -> Grant:
        if name not in members:
            return NO_GRANT
        line, node = members[name]
        text = self._optional(node, name)
        self._check_right(text or "", line, f"account {key}: {name}")
        return Grant(parse_right(text), line)

    def _perms(
        self, members: Mapping[str, tuple[int, yaml.Node]], name: str, key: str
    ) -> Iterator[tuple[str, Grant]]:
        known: set[str] = set()
        what = f"account {key}: {name}"
        nodes = self._items(_of(members, name), name)
        for named, right, line in self._each(nodes, lambda node: self._perm(node, what)):
            self._check_right(right, line, f"{what}: {named}")
            if named in known:
                self._warn(line, f"{what}: {named} is there twice, the last counts")
            if "*" in named:
                default = "defaultTopicPerm" if name == "topicPerms" else "defaultGroupPerm"
                star = "a star stands for itself here; for all it is"
                self._warn(line, f"{what}: {named}: {star} {default}", takes=False)
            known.add(named)
            self._pauses.take()
            yield self._names.setdefault(named, named), Grant(parse_right(right), line)

    def _perm(self, node: yaml.Node, what: str) -> tuple[str, str, int]:
        """Name, text of the right, line."""
        text = self._text(node, what)
        parts = [part for part in text.split("=") if part]
        if len(parts) != 2:
            raise self._wrong(node, f"{what}: {text!r} is not of the form name=PUB|SUB")
        return parts[0].strip(), parts[1], node.start_mark.line + 1

    def _check_right(self, text: str, line: int, what: str) -> None:
        if not is_right(text):
            self._warn(line, f"{what}: {text.strip()!r} is no right and counts as DENY")

    def _white(self, listed: yaml.Node | None) -> Iterator[AddressPattern]:
        # An empty one is nobody's.
        patterns = self._each(self._items(listed, _WHITE), self._pattern)
        return (pattern for pattern in patterns if pattern.text)

    def _version(self, listed: yaml.Node | None) -> tuple[int, int]:
        for node in list(self._items(listed, _VERSION))[:1]:
            numbers = self._members(node, _VERSION)
            found = [self._optional(_of(numbers, name), name) for name in ("counter", "timestamp")]
            if all(text is None or _is_plain_number(text) for text in found):
                counter, timestamp = (int(text or 0) for text in found)
                return counter, timestamp
            raise self._wrong(node, "counter and timestamp of dataVersion must be numbers")
        return 0, 0

    def _wrong(self, node: yaml.Node | ListNode, what: str) -> AccountFileError:
        return AccountFileError(f"{self._path}:{node.start_mark.line + 1}: {what}")

    def _warn(self, line: int, what: str, *, takes: bool = True) -> None:
        """`takes`: somebody may have less by it than the file seems to give."""
        warning = f"{self._path}:{line}: {what}"
        self._said.warnings.append(warning)
        if takes:
            self._said.causes.append(warning)


def _of(members: Mapping[str, tuple[int, yaml.Node | None]], name: str) -> yaml.Node | None:
    found = members.get(name)
    return None if found is None else found[1]


def _shown(name: str) -> str:
    """A word that is not known: only so far as a secret cannot be, of `secretKey:12345678`."""
    return repr(name.partition(":")[0][:_SHOWN])


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_plain_number(text: str) -> bool:
    """Whether every reader of YAML has the same number in mind: 0123 is 83 to some."""
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0") and len(text) < 19
