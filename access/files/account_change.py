"""Changes of files of accounts by requests of an administrator (protocol/WIRE.md 3.7).

A file is read, changed and replaced as a whole, in RocketMQ's form: members it does not know stay,
comments go. The rules are those of upstream's PlainPermissionManager: a field that is not given
stays as it is, `admin` is what the request says, and the data version counts up. A file that could
not be read again is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from aerobee.access.errors import AccountFileError
from aerobee.access.files.account_file import BOOL, MAX_BYTES, NULL, TRUE, parse_account_file
from aerobee.access.files.account_nodes import compose
from aerobee.access.pauses import Pauses
from aerobee.access.rights import is_right
from aerobee.file_replacement import replace_file

_ACCOUNTS: Final = "accounts"
_KEY: Final = "accessKey"
#: A file of secrets is its owner's alone.
_MODE: Final = 0o600
_Members = dict[str, Any]


class AccountChange:
    """One change of one file. Methods raise AccountFileError with what is wrong, and change nothing
    then; OSError when the file cannot be written."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        # Through links, which stay: of a volume whose files are swapped so.
        self._path = path.resolve()
        self._now_ms = now_ms

    def put(self, given: Mapping[str, Any]) -> None:
        """Make an account; if it exists, change those of its members that are given."""
        for name in ("topicPerms", "groupPerms"):
            _check_perms(given.get(name) or (), name)
        members = self._read()
        accounts = members.setdefault(_ACCOUNTS, [])
        if accounts is None:
            accounts = members[_ACCOUNTS] = []
        found = next((one for one in accounts if one.get(_KEY) == given[_KEY]), None)
        if found is None:
            found = {}
            accounts.append(found)
        found.update({name: value for name, value in given.items() if value is not None})
        self._write(members)

    def delete(self, access_key: str) -> bool:
        """Take an account out; False when it is not in the file."""
        members = self._read()
        accounts = members.get(_ACCOUNTS) or []
        left = [one for one in accounts if one.get(_KEY) != access_key]
        if len(left) == len(accounts):
            return False
        members[_ACCOUNTS] = left
        self._write(members)
        return True

    def set_white(self, addresses: Sequence[str]) -> None:
        """The addresses that nothing is asked of."""
        members = self._read()
        members["globalWhiteRemoteAddresses"] = list(addresses)
        self._write(members)

    def _read(self) -> _Members:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        parse_account_file(str(self._path), content, Pauses())
        node = compose(str(self._path), content)
        return {} if node is None or node.tag == NULL else _plain(node, {})

    def _write(self, members: _Members) -> None:
        versions = members.get("dataVersion") or [{}]
        counter = str(versions[0].get("counter") or 0)
        members["dataVersion"] = [{"counter": int(counter) + 1, "timestamp": self._now_ms()}]
        text = yaml.safe_dump(
            members, sort_keys=False, allow_unicode=True, default_flow_style=False
        )
        content = text.encode()
        if len(content) > MAX_BYTES:
            raise AccountFileError(f"{self._path}: would be larger than {MAX_BYTES >> 20} MiB")
        # A text that could not be read again is not written.
        parse_account_file(str(self._path), content, Pauses())
        replace_file(self._path, content, keep_mode=True, mode=_MODE)


def _check_perms(perms: Sequence[str], what: str) -> None:
    for perm in perms:
        name, equals, right = perm.partition("=")
        if not equals or not name.strip() or not is_right(right):
            raise AccountFileError(
                f"{what}: {perm!r} is not of the form name=PUB, SUB, PUB|SUB, SUB|PUB or DENY"
            )


def _plain(node: yaml.Node, known: dict[int, Any]) -> Any:
    """A node's value with every scalar as the text it is, so that 0123 stays 0123. What is `known`
    by its node's identity is an alias, and stays one value: taken apart it may be billions."""
    if id(node) in known:
        return known[id(node)]
    if isinstance(node, yaml.MappingNode):
        members: dict[Any, Any] = {}
        known[id(node)] = members
        members.update((_name(key), _plain(value, known)) for key, value in node.value)
        return members
    if isinstance(node, yaml.SequenceNode):
        items: list[Any] = []
        known[id(node)] = items
        items.extend(_plain(one, known) for one in node.value)
        return items
    if node.tag == NULL:
        return None
    if node.tag == BOOL:
        return node.value.lower() in TRUE
    return node.value


def _name(node: yaml.Node) -> str:
    """A name of a map. One that is no text would not come out as it went in."""
    if not isinstance(node, yaml.ScalarNode):
        raise AccountFileError("a name that is no text is in the file; it can be changed by hand")
    text: str = node.value
    return text
