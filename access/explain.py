"""Explains what an account may do, and which line of which file says so."""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.access.accounts import GROUP, TOPIC, Account, Need
from aerobee.access.needs import of_topic
from aerobee.access.rights import PUB, SUB, right_name
from aerobee.protocol.names import DLQ_PREFIX, HIDDEN_TOPICS, TRACE_TOPIC


def explain(account: Account, topic: str | None, group: str | None) -> Iterator[str]:
    """Lines about one account: what it is, and its rights on a topic and a group that are named,
    or all lines that give or take some."""
    yield f"account {account.access_key} ({account.path}:{account.line})"
    yield "  administrator: " + ("yes" if account.admin else "no")
    if account.addresses.text:
        yield f"  from {account.addresses.text}: everything, without a signature"
    if account.may_everything:
        yield "  everything: it is an administrator, and no line names a topic or a group"
        return
    if topic is None and group is None:
        yield from _all(account)
    if topic is not None:
        yield from _rights(account, TOPIC, topic, ((PUB, "send to"), (SUB, "read")))
    if group is not None:
        yield from _rights(account, GROUP, group, ((SUB, "consume in"),))


def _rights(
    account: Account, kind: str, name: str, asked: tuple[tuple[int, str], ...]
) -> Iterator[str]:
    for right, verb in asked:
        need = of_topic(name, right) if kind == TOPIC else Need(kind, name, right)
        if need == (TOPIC, TRACE_TOPIC, PUB):
            answer, why = "yes", "every account may send traces"
        else:
            answer, why = "yes" if account.has(need) else "no", _why(account, need)
        yield f"  {verb} {kind} {name}: {answer} ({why})"


def _why(account: Account, need: Need) -> str:
    """The line that decides; a retry topic has none of its own, its group's counts, as it does for
    dead letters without one."""
    grant = account.grant(need.kind, need.name)
    if need.kind == TOPIC and need.name.startswith(DLQ_PREFIX) and need.name not in account.topics:
        need = Need(GROUP, need.name.removeprefix(DLQ_PREFIX), SUB)
    named = need.name in (account.groups if need.kind == GROUP else account.topics)
    default = f"default{need.kind.capitalize()}Perm"
    if grant.line:
        source = f"{account.path}:{grant.line}, {'this line' if named else default}"
    elif need.kind == TOPIC and need.name in HIDDEN_TOPICS:
        source = "messages of all topics lie there, so that only a line of its own gives a right"
    else:
        source = f"no line names it and there is no {default}, which means DENY"
    return f"{right_name(grant.right)}: {source}"


def _all(account: Account) -> Iterator[str]:
    for kind, default, named in (
        (TOPIC, account.default_topic, account.topics),
        (GROUP, account.default_group, account.groups),
    ):
        for name, grant in sorted(named.items()):
            yield f"  {kind} {name}: {right_name(grant.right)} (line {grant.line})"
        where = f"line {default.line}" if default.line else "no line"
        yield f"  every other {kind}: {right_name(default.right)} ({where})"
