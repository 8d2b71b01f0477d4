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

The nodes of the YAML are read, never objects made of them, so that a file can name no class and
each right knows its line. What the reference takes in silence and does not do, an unknown word, a
right that it reads as DENY, a text that YAML reads as something else, is a warning.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import yaml

from aerobee.access.accounts import LONGER_THAN, Account, Grant
from aerobee.access.addresses import AddressPattern
from aerobee.access.errors import AccountFileError
from aerobee.access.rights import DENY, is_right, parse_right

_T = TypeVar("_T")

#: A file that is larger is refused before it is parsed: 20,000 accounts have room in it.
MAX_BYTES: Final = 8 << 20
#: Names and list entries of one file, each counted as often as an alias repeats it. As many as a
#: file of the largest size has without aliases; with some it could have billions.
MAX_ENTRIES: Final = 1 << 20
#: Faults that are collected before the rest of a file is left unread.
MAX_FAULTS: Final = 100
# A file of accounts has six levels.
_MAX_DEPTH: Final = 32
# Of a word that is not known.
_SHOWN: Final = 64
# What a parser quotes from the file: a secret that begins with * or ! is an alias or a tag to it.
_QUOTED: Final = re.compile(r"""(['"]).{2,}\1""")
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
    """What one file says. `counter` and `timestamp` are its data version, the time in ms; `causes`
    are those of the warnings by which somebody may have less than the file seems to give."""

    path: str
    accounts: tuple[Account, ...] = ()
    white: tuple[AddressPattern, ...] = ()
    counter: int = 0
    timestamp: int = 0
    warnings: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


def read_account_file(path: str) -> AccountFile:
    """Raises AccountFileError for what cannot be read, OSError included."""
    try:
        # Whoever opens a pipe waits for its other end, but so.
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
    file = parse_account_file(path, content)
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return file
    loose = f"{path}: others on this machine can read its secret keys; chmod 600"
    return replace(file, warnings=(*file.warnings, loose))


def parse_account_file(path: str, content: bytes) -> AccountFile:
    """The same, of what is in the file."""
    if len(content) > MAX_BYTES:
        raise AccountFileError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
    return _Reader(path).read(content)


class _TooDeep(yaml.YAMLError):
    problem = "it is nested too deeply"

    def __init__(self, mark: object) -> None:
        super().__init__(self.problem)
        self.problem_mark = mark


class _Shallow(yaml.composer.Composer):
    """Composes nodes, which may not be nested deeply: each level is one of Python's stack."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]
            raise _TooDeep(mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Loader(_Shallow, yaml.SafeLoader):
    """Of PyYAML without libyaml."""


def _loader() -> Any:
    """The class that reads a file: with libyaml, several times as quick, where there is one."""
    if not yaml.__with_libyaml__:
        return _Loader

    class Quick(_Shallow, yaml.CSafeLoader):
        def __init__(self, stream: bytes) -> None:
            yaml.CSafeLoader.__init__(self, stream)
            _Shallow.__init__(self)

    return Quick


_LOADER: Final = _loader()
# What libyaml calls the same.
_LIBYAML: Final = {"exceeded maximum nesting depth": _TooDeep.problem}


def compose(path: str, content: bytes) -> yaml.Node | None:
    """The nodes of a file, None for an empty one. Raises AccountFileError, which quotes nothing of
    the file, for what is no YAML."""
    try:
        node: yaml.Node | None = yaml.compose(content, Loader=_LOADER)
    except yaml.YAMLError as error:
        # The text of the error shows lines of the file, and those may hold secrets.
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            raise AccountFileError(f"{path}{_where_no_text(content)}") from None
        line = f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or "it cannot be read"
        problem = _QUOTED.sub("...", _LIBYAML.get(problem, problem))
        raise AccountFileError(f"{path}{line}: no YAML: {problem}") from None
    except (ValueError, OverflowError) as error:
        # Numbers of escapes and versions that are none.
        raise AccountFileError(f"{path}: no YAML: {type(error).__name__}") from None
    return node


def _where_no_text(content: bytes) -> str:
    """What begins a file that is no text, behind its path: its line, and the first wrong byte,
    which is not shown, as it may be one of a secret."""
    said = "the file must be UTF-8 text"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f": no YAML: it begins as UTF-16 and is damaged; {said}"
    what, at = "no UTF-8", len(content)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        at = error.start
        text = content[:at].decode()
    if (found := _Loader.NON_PRINTABLE.search(text)) is not None:
        what = "NUL" if found.group() == "\0" else "no printable character"
        at = len(text[: found.start()].encode())
    if at == len(content):
        return f": no YAML: it cannot be read; {said}"
    line_start = content.rfind(b"\n", 0, at) + 1
    line = content.count(b"\n", 0, at) + 1
    return f":{line}: no YAML: byte {at - line_start + 1} of this line is {what}; {said}"


class _Reader:
    """Reads one file, and collects warnings, and faults: one of each account, right or address."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._entries_left = MAX_ENTRIES
        self._warnings: list[str] = []
        self._causes: list[str] = []
        self._faults: list[str] = []

    def read(self, content: bytes) -> AccountFile:
        node = compose(self._path, content)
        members = {} if node is None or node.tag == NULL else self._members(node, "the file")
        for name, (line, _) in members.items():
            if name not in (_WHITE, _ACCOUNTS, _VERSION):
                self._warn(line, f"{_shown(name)} is no word of a file of accounts")
        try:
            counter, timestamp = self._version(members)
            accounts = tuple(self._accounts(members))
            white = tuple(self._white(members))
        except AccountFileError as error:
            raise AccountFileError(*self._faults, *error.faults) from None
        if self._faults:
            raise AccountFileError(*self._faults)
        said = tuple(self._warnings), tuple(self._causes)
        return AccountFile(self._path, accounts, white, counter, timestamp, *said)

    def _each(self, nodes: Iterable[yaml.Node], read: Callable[[yaml.Node], _T]) -> Iterator[_T]:
        """What is read of each; one that is wrong is left out and its fault kept."""
        for node in nodes:
            if len(self._faults) >= MAX_FAULTS:
                return
            try:
                found = read(node)
            except AccountFileError as error:
                self._faults += error.faults
            else:
                yield found

    # --- nodes

    def _members(self, node: yaml.Node, what: str) -> dict[str, tuple[int, yaml.Node]]:
        if node.tag != _MAP or not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, f"{what} must be a map of names and values")
        self._count(node)
        found: dict[str, tuple[int, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                # No warning: RocketMQ reads them, and what is merged may take rights away.
                raise self._wrong(key, "merges (<<) are not read; write out what is merged")
            name = self._text(key, "a name")
            if name in found:
                raise self._wrong(key, f"{_shown(name)} is there twice")
            found[name] = (key.start_mark.line + 1, value)
        return found

    def _items(self, node: yaml.Node | None, what: str) -> list[yaml.Node]:
        if node is None or node.tag == NULL:
            return []
        if node.tag != _LIST or not isinstance(node, yaml.SequenceNode):
            raise self._wrong(node, f"{what} must be a list")
        self._count(node)
        return list(node.value)

    def _count(self, node: yaml.MappingNode | yaml.SequenceNode) -> None:
        self._entries_left -= len(node.value)
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

    def _accounts(self, members: Mapping[str, tuple[int, yaml.Node]]) -> Iterator[Account]:
        known: set[str] = set()
        nodes = self._items(_of(members, _ACCOUNTS), _ACCOUNTS)
        for account in self._each(nodes, self._account):
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
            dict(self._perms(members, "topicPerms", key)),
            dict(self._perms(members, "groupPerms", key)),
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
        try:
            pattern = AddressPattern(self._optional(node, "an address"))
        except ValueError as error:
            assert node is not None
            raise self._wrong(node, str(error)) from None
        if node is not None and (meant := pattern.means_more):
            self._warn(
                node.start_mark.line + 1,
                f"address {pattern.text!r} means {meant}: as with RocketMQ, what follows the first "
                "range is not looked at",
                takes=False,
            )
        return pattern

    def _default(self, members: Mapping[str, tuple[int, yaml.Node]], name: str, key: str) -> Grant:
        if name not in members:
            return Grant(DENY, 0)
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
            yield named, Grant(parse_right(right), line)

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

    def _white(self, members: Mapping[str, tuple[int, yaml.Node]]) -> Iterator[AddressPattern]:
        # An empty one is nobody's.
        patterns = self._each(self._items(_of(members, _WHITE), _WHITE), self._pattern)
        return (pattern for pattern in patterns if pattern.text)

    def _version(self, members: Mapping[str, tuple[int, yaml.Node]]) -> tuple[int, int]:
        for node in self._items(_of(members, _VERSION), _VERSION)[:1]:
            numbers = self._members(node, _VERSION)
            found = [self._optional(_of(numbers, name), name) for name in ("counter", "timestamp")]
            if all(text is None or _is_plain_number(text) for text in found):
                counter, timestamp = (int(text or 0) for text in found)
                return counter, timestamp
            raise self._wrong(node, "counter and timestamp of dataVersion must be numbers")
        return 0, 0

    def _wrong(self, node: yaml.Node, what: str) -> AccountFileError:
        return AccountFileError(f"{self._path}:{node.start_mark.line + 1}: {what}")

    def _warn(self, line: int, what: str, *, takes: bool = True) -> None:
        """`takes`: somebody may have less by it than the file seems to give."""
        warning = f"{self._path}:{line}: {what}"
        self._warnings.append(warning)
        if takes:
            self._causes.append(warning)


def _of(members: Mapping[str, tuple[int, yaml.Node]], name: str) -> yaml.Node | None:
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
