"""The explanation of an account names the line that decides."""

from aerobee.access.accounts import Account
from aerobee.access.explain import explain
from aerobee.access.files.account_file import parse_account_file

FILE = b"""\
accounts:
- accessKey: account-1
  secretKey: very-secret
  whiteRemoteAddress: 10.1.2.*
  defaultTopicPerm: SUB
  topicPerms:
  - orders=PUB
  groupPerms:
  - readers=SUB
- accessKey: operator
  secretKey: very-secret
  admin: true
"""


def accounts() -> tuple[Account, ...]:
    return parse_account_file("f.yml", FILE).accounts


def test_all_lines_of_an_account() -> None:
    assert list(explain(accounts()[0], None, None)) == [
        "account account-1 (f.yml:2)",
        "  administrator: no",
        "  from 10.1.2.*: everything, without a signature",
        "  topic orders: PUB (line 7)",
        "  every other topic: SUB (line 5)",
        "  group readers: SUB (line 9)",
        "  every other group: DENY (no line)",
    ]


def test_a_topic_and_a_group_that_are_named() -> None:
    assert list(explain(accounts()[0], "orders", "readers"))[3:] == [
        "  send to topic orders: yes (PUB: f.yml:7, this line)",
        "  read topic orders: no (PUB: f.yml:7, this line)",
        "  consume in group readers: yes (SUB: f.yml:9, this line)",
    ]


def test_a_default_and_no_line_at_all() -> None:
    assert list(explain(accounts()[0], "others", "others"))[3:] == [
        "  send to topic others: no (SUB: f.yml:5, defaultTopicPerm)",
        "  read topic others: yes (SUB: f.yml:5, defaultTopicPerm)",
        "  consume in group others: no (DENY: no line names it and there is no defaultGroupPerm, "
        "which means DENY)",
    ]


def test_a_hidden_topic_is_not_the_defaults() -> None:
    lines = list(explain(accounts()[0], "SCHEDULE_TOPIC_XXXX", None))
    assert lines[-1].startswith("  read topic SCHEDULE_TOPIC_XXXX: no (DENY: ")
    assert "there is no defaultTopicPerm" not in lines[-1]


def test_a_retry_topic_is_its_groups() -> None:
    lines = list(explain(accounts()[0], "%RETRY%readers", None))
    assert lines[3:] == [
        "  send to topic %RETRY%readers: yes (SUB: f.yml:9, this line)",
        "  read topic %RETRY%readers: yes (SUB: f.yml:9, this line)",
    ]


def test_dead_letters_are_their_groups() -> None:
    lines = list(explain(accounts()[0], "%DLQ%readers", None))
    assert lines[3:] == [
        "  send to topic %DLQ%readers: yes (PUB|SUB: f.yml:9, this line)",
        "  read topic %DLQ%readers: yes (PUB|SUB: f.yml:9, this line)",
    ]
    assert list(explain(accounts()[0], "%DLQ%others", None))[-1] == (
        "  read topic %DLQ%others: no (DENY: no line names it and there is no defaultGroupPerm, "
        "which means DENY)"
    )


def test_an_administrator_may_everything() -> None:
    assert list(explain(accounts()[1], "orders", None)) == [
        "account operator (f.yml:10)",
        "  administrator: yes",
        "  everything: it is an administrator, and no line names a topic or a group",
    ]


def test_no_secret_is_said() -> None:
    for one in accounts():
        assert "very-secret" not in "\n".join(explain(one, "orders", "readers"))


def test_traces_are_everybodys_to_send() -> None:
    lines = list(explain(accounts()[0], "RMQ_SYS_TRACE_TOPIC", None))
    assert lines[3] == "  send to topic RMQ_SYS_TRACE_TOPIC: yes (every account may send traces)"
