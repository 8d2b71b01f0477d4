"""The rights of an account: its lines, its defaults, administrators, topics that are hidden."""

from typing import Any

import pytest

from aerobee.access.accounts import GROUP, TOPIC, Account, Grant, Need, Rules
from aerobee.access.rights import ANY, DENY, PUB, SUB
from aerobee.address_patterns import AddressPattern
from aerobee.protocol.names import HIDDEN_TOPICS, SCHEDULE_TOPIC, TRACE_TOPIC


def account(key: str = "account-1", **changes: Any) -> Account:
    values: dict[str, Any] = {
        "access_key": key, "secret_key": "very-secret", "admin": False,
        "addresses": AddressPattern(None), "default_topic": Grant(DENY, 0),
        "default_group": Grant(DENY, 0), "topics": {}, "groups": {}, "path": "f.yml", "line": 1,
    }  # fmt: skip
    return Account(**{**values, **changes})


def test_without_a_line_and_a_default_there_is_no_right() -> None:
    one = account()
    for right in (PUB, SUB, ANY):
        assert not one.has(Need(TOPIC, "orders", right))
        assert not one.has(Need(GROUP, "readers", right))
    assert not one.grants_something


def test_a_line_of_its_own_counts_more_than_the_default() -> None:
    one = account(
        default_topic=Grant(PUB | SUB, 2),
        default_group=Grant(SUB, 3),
        topics={"closed": Grant(DENY, 4), "read": Grant(SUB, 5)},
        groups={"closed": Grant(DENY, 6)},
    )
    assert one.has(Need(TOPIC, "others", PUB))
    assert not one.has(Need(TOPIC, "closed", SUB))
    assert not one.has(Need(TOPIC, "read", PUB))
    assert one.has(Need(TOPIC, "read", ANY))
    assert one.has(Need(GROUP, "others", SUB))
    assert not one.has(Need(GROUP, "closed", SUB))
    assert one.grant(TOPIC, "read").line == 5


def test_groups_and_topics_of_one_name_are_two() -> None:
    one = account(topics={"orders": Grant(SUB, 4)})
    assert not one.has(Need(GROUP, "orders", SUB))


def test_dead_letters_are_their_groups() -> None:
    one = account(
        default_topic=Grant(PUB | SUB, 2),
        default_group=Grant(SUB, 3),
        groups={"denied": Grant(DENY, 4), "sends": Grant(PUB, 5)},
        topics={"%DLQ%denied-but-named": Grant(SUB, 6), "%DLQ%closed": Grant(DENY, 7)},
    )
    for right in (PUB, SUB, ANY):
        assert not one.has(Need(TOPIC, "%DLQ%denied", right))
        assert not one.has(Need(TOPIC, "%DLQ%sends", right))
        assert not one.has(Need(TOPIC, "%DLQ%closed", right))
        assert one.has(Need(TOPIC, "%DLQ%others", right))
    assert one.grant(TOPIC, "%DLQ%denied").line == 4
    assert one.has(Need(TOPIC, "%DLQ%denied-but-named", SUB))
    closed = account(groups={"mine": Grant(SUB, 2)})
    assert closed.has(Need(TOPIC, "%DLQ%mine", SUB))
    assert not closed.has(Need(TOPIC, "%DLQ%others", SUB))


def test_deny_refuses_beside_others() -> None:
    one = account(topics={"orders": Grant(DENY | PUB | SUB, 4)})
    assert not one.has(Need(TOPIC, "orders", PUB))
    assert not one.has(Need(TOPIC, "orders", ANY))


def test_an_administrator_without_lists_may_everything() -> None:
    one = account(admin=True)
    assert one.may_everything
    assert one.has(Need(TOPIC, SCHEDULE_TOPIC, SUB))
    assert one.has(Need(GROUP, "readers", SUB))


@pytest.mark.parametrize(
    "lists", [{"topics": {"a": Grant(PUB, 1)}}, {"groups": {"a": Grant(SUB, 1)}}]
)
def test_an_administrator_with_lists_is_judged_by_them(lists: dict[str, Any]) -> None:
    one = account(admin=True, **lists)
    assert not one.may_everything
    assert not one.has(Need(TOPIC, "orders", PUB))
    assert one.grants_something


def test_a_default_does_not_reach_topics_where_messages_of_all_wait() -> None:
    one = account(default_topic=Grant(PUB | SUB, 2))
    for topic in HIDDEN_TOPICS:
        assert not one.has(Need(TOPIC, topic, SUB)), topic
        assert account(topics={topic: Grant(SUB, 3)}).has(Need(TOPIC, topic, SUB))
    assert one.has(Need(TOPIC, TRACE_TOPIC, SUB))


@pytest.mark.parametrize(
    "changes",
    [
        {"admin": True},
        {"default_topic": Grant(SUB, 1)},
        {"default_group": Grant(SUB, 1)},
        {"topics": {"a": Grant(PUB, 1)}},
        {"groups": {"a": Grant(SUB, 1)}},
    ],
)
def test_what_grants_something(changes: dict[str, Any]) -> None:
    assert account(**changes).grants_something
    assert Rules([account(**changes)]).grants_something


def test_lines_that_deny_grant_nothing() -> None:
    assert not account(topics={"a": Grant(DENY, 1)}).grants_something
    assert not Rules().grants_something


def test_an_account_is_shown_without_its_secret() -> None:
    assert "very-secret" not in repr(account())


def test_rules_know_white_addresses_and_forget_what_they_have_remembered() -> None:
    rules = Rules(white=[AddressPattern("10.1.2.*"), AddressPattern("2001:db8::7")])
    assert rules.grants_something
    # More than are remembered: none of the answers changes.
    for number in range(3):
        for last in range(2000):
            assert not rules.is_white(f"10.{number + 2}.{last // 250}.{last % 250}")
    assert rules.is_white("10.1.2.9")
    assert rules.is_white("2001:db8:0::7")
    assert not rules.is_white("nothing")
