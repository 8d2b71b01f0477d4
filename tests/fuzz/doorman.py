"""Says by itself whether a request may pass: the oracle of the runs against a broker with accounts.

Nothing of `access/control.py` and of `protocol/frames/signature.py` is used, so that a fault there
is seen. The reach of a request comes from the product's table (`access/needs.py`), which
tests/contract/access/test_access.py has once more, by hand; the meaning of accounts and addresses
comes from the rules in force.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from aerobee.access.accounts import GROUP, TOPIC, Account, Need, Rules
from aerobee.access.needs import Needs, TopicAt, administrator
from aerobee.access.rights import ANY, DENY, PUB, SUB
from aerobee.protocol.frames.command import Command
from aerobee.protocol.names import HIDDEN_TOPICS

_TRACES: Final = "RMQ_SYS_TRACE_TOPIC"
#: The last version whose clients do not sign that a query is one by unique key.
_WITHOUT: Final = 399


class Doorman:
    """Knows the table and who asks for what; the rules are given with each question."""

    def __init__(self, table: Mapping[int, Needs], topic_at: TopicAt, *, others_open: bool) -> None:
        """`others_open`: codes without a row need nothing."""
        self._table = table
        self._topic_at = topic_at
        self._others_open = others_open

    def why_not(self, rules: Rules, command: Command, peer: str) -> str:
        """Why a request is to be refused; "" when it may pass. Raises BadRequest as the table does,
        for a body that cannot be read."""
        needs = self._table.get(command.code)
        if needs is None and self._others_open:
            return ""
        if any(pattern.matches(peer) for pattern in rules.white):
            return ""
        account = rules.accounts.get(command.ext.get("AccessKey", ""))
        if account is None:
            return "nobody's account"
        if account.addresses.matches(peer):
            return ""
        if not is_signed(command, account.secret_key):
            return f"not signed by {account.access_key}"
        if needs is None:
            return "a code that is open to nobody"
        if needs is administrator:
            return "" if account.admin else f"{account.access_key} is no administrator"
        if account.admin and not account.topics and not account.groups:
            return ""
        # Check the needs singly: after the first missing right, a body may be unreadable.
        for need in needs(command, self._topic_at):
            if need is not None and not _has(account, need):
                return f"{account.access_key} has no right {need}"
        return ""


def is_signed(command: Command, secret: str) -> bool:
    """Whether a request carries the signature that RocketMQ's documents describe."""
    left_out = {"Signature"}
    if command.version <= _WITHOUT:
        left_out.add("_UNIQUE_KEY_QUERY")
    values = "".join(command.ext[name] for name in sorted(command.ext) if name not in left_out)
    content = values.encode("utf-8", "surrogatepass") + bytes(command.body)
    digest = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    return command.ext.get("Signature") == base64.b64encode(digest).decode()


def _has(account: Account, need: Need) -> bool:
    if need == Need(TOPIC, _TRACES, PUB):
        return True
    if need.kind == TOPIC:
        named, default = account.topics.get(need.name), account.default_topic
        if named is None and need.name in HIDDEN_TOPICS:
            return False
        if named is None and need.name.startswith("%DLQ%"):
            # They are the group's.
            return _has(account, Need(GROUP, need.name[len("%DLQ%") :], SUB))
    else:
        named, default = account.groups.get(need.name), account.default_group
    given = (named or default).right
    return not given & DENY and bool(given & (PUB | SUB if need.right == ANY else need.right))
