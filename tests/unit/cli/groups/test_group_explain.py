"""`group explain`, `group describe` and `group list --behind`: why groups stand, and where."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from aerobee.cli.cluster.consumer_groups.group_explain import findings_of
from aerobee.cli.cluster.consumer_groups.group_view import GroupView, lag_text
from aerobee.cli.documents.groups import Finding
from aerobee.client import blocking_roles
from aerobee.client.administration.group_lag import BrokerView
from aerobee.client.options import ConsumeFrom
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.group_lag import (
    GroupLag,
    GroupSettings,
    GroupState,
    HeadMessage,
    QueueLagState,
    SharedId,
    Statement,
    TopicState,
)
from aerobee.testing import RunningBroker
from tests.unit.cli.groups.group_support import WAIT_S, Run, fill, stuck

ALL = GroupSettings(consume_enable=True, consume_broadcast_enable=True, retry_max_times=16)
NOW_MS = 1_700_000_000_000


def statement(*clients: str, expression: str = "*", kind: str = "TAG") -> Statement:
    return Statement(type=kind, expression=expression, members=len(clients), clients=list(clients))


def topic(**fields: Any) -> TopicState:
    plain: dict[str, Any] = {
        "topic": "T", "exists": True, "perm": 6, "statements": [statement("c1")],
    }  # fmt: skip
    return TopicState(**{**plain, **fields})


def queue(**fields: Any) -> QueueLagState:
    plain: dict[str, Any] = {
        "topic": "T", "queue_id": 0, "committed": 4, "begin": 4, "end": 9, "lag": 5, "given_out": 0,
    }  # fmt: skip
    return QueueLagState(**{**plain, **fields})


def state(**fields: Any) -> GroupState:
    plain: dict[str, Any] = {
        "group": "g", "now_ms": NOW_MS, "settings": ALL, "members": 1, "clients": ["c1"],
        "message_model": "CLUSTERING", "retries": 0, "dead": 0, "broker_perm": 6,
        "topics": [topic()],
    }  # fmt: skip
    return GroupState(**{**plain, **fields})


def view(found: GroupState, *queues: QueueLagState, is_full: bool = True) -> GroupView:
    return GroupView("g", {"bee": BrokerView(GroupLag(found, list(queues)), is_full)})


def kinds(found: GroupView) -> dict[str, Finding]:
    return {one.kind: one for one in findings_of(found)}


def test_a_group_that_comes_on_has_no_finding() -> None:
    assert findings_of(view(state(), queue(), queue(queue_id=1, lag=0, begin=9, committed=9))) == []


@pytest.mark.parametrize(
    ("found", "kind", "level", "cause"),
    [
        (view(state(members=0, clients=[]), queue()), "no_member", "problem",
         "no member is online"),
        (view(state(members=0, clients=[]), queue(lag=0)), "no_member", "notice", "heartbeats"),
        (view(state(settings=GroupSettings(consume_enable=False, consume_broadcast_enable=True,
                                           retry_max_times=16))),
         "consume_disabled", "problem", "switched off for the group at bee"),
        (view(state(settings=None)), "no_settings", "problem", "no settings for the group"),
        (view(state(message_model="BROADCASTING",
                    settings=GroupSettings(consume_enable=True, consume_broadcast_enable=False,
                                           retry_max_times=16))),
         "broadcast_disabled", "problem", "which bee refuses"),
        (view(state(message_model="BROADCASTING")), "broadcasting", "notice", "no broker knows"),
        (view(state(broker_perm=2)), "broker_not_readable", "problem", "read from bee"),
        (view(state(topics=[topic(exists=False, perm=0)])), "topic_missing", "problem",
         "no broker has the topic T"),
        (view(state(topics=[topic(exists=False, perm=0, statements=[])])), "topic_missing",
         "notice", "no broker has the topic T"),
        (view(state(topics=[topic(perm=2)])), "topic_not_readable", "problem", "permission 2"),
        (view(state(topics=[topic(statements=[statement("c1"), statement("c2", expression="a")])])),
         "subscription_differs", "problem", "c1 want '*' (TAG); c2 want 'a' (TAG)"),
        (view(state(topics=[topic(without=["c3"])])), "subscription_differs", "problem",
         "c3 do not subscribe"),
        (view(state(topics=[topic(statements=[statement("c1", expression="a")], looked=9)])),
         "filtered_out", "notice", "none of the 9 newest messages of T passes"),
        (view(state(shared_ids=[SharedId(client_id="c1", addresses=["1.2.3.4:5", "1.2.3.5:6"])])),
         "shared_client_id", "problem", "1.2.3.4:5, 1.2.3.5:6"),
        (view(state(), queue(committed=None, begin=None, lag=None, given_out=None)),
         "no_offset", "notice", "no offset in T/bee/0"),
        (view(state(), queue(committed=12, begin=12, lag=0)), "beyond_the_end", "problem", "12"),
        (view(state(), queue(committed=1, first=4)), "behind_expired", "notice",
         "3 messages of T/bee/0 were deleted"),
        (view(state(), queue(left_s=75.0, is_left=True)), "not_pulled", "problem",
         "nothing was pulled from T/bee/0 for 75 s, though 5 messages wait there; c1 has it"),
        (view(state(retries=3)), "retries", "notice", "3 messages"),
        (view(state(dead=2)), "dead", "notice", "2 messages are dead"),
    ],
)  # fmt: skip
def test_each_reason_has_its_finding(found: GroupView, kind: str, level: str, cause: str) -> None:
    one = kinds(found)[kind]
    assert (one.level, cause in one.cause, bool(one.remedy)) == (level, True, True), one


def test_a_stuck_queue_names_message_age_try_member_and_lock() -> None:
    head = HeadMessage(offset=4, msg_id="ABC", stored_ms=NOW_MS - 7_200_000, attempt=3)
    stands = {"is_stuck": True, "stands_s": 75.2, "given_out": 2, "head": head}
    one = kinds(view(state(members=2, clients=["c1", "c2"]), queue(lock_owner="c2", **stands)))
    assert one["stuck"].cause == (
        "T/bee/0 is stuck for 75 s, with 2 messages given out: at message ABC (offset 4, stored "
        "2 h ago, try 3), which c2 has (it has locked the queue)"
    )
    # Five are named, the others are counted.
    many = [queue(queue_id=number, **stands) for number in range(9)]
    causes = [one.cause for one in findings_of(view(state(), *many))]
    assert (len(causes), causes[-1]) == (6, "and so do 4 more queues of T")


def test_problems_stand_before_notices() -> None:
    found = findings_of(view(state(dead=2, members=0, clients=[]), queue()))
    assert [one.kind for one in found] == ["no_member", "dead"]


def test_a_sum_with_an_unknown_part_is_not_known() -> None:
    unknown = queue(queue_id=1, begin=None, committed=None, lag=None, given_out=None)
    found = view(state(retries=2), queue(), unknown)
    assert (found.lag(), found.lag_at_least(), found.unknown_queues()) == (None, 7, 1)
    assert (found.given_out(), lag_text(found)) == (None, "? (at least 7)")
    of_java = view(state(retries=None, dead=None), queue(given_out=None), is_full=False)
    assert (of_java.lag(), of_java.dead, of_java.stuck()) == (5, None, None)
    assert lag_text(view(state(), unknown)) == "?"


# --- against a broker -----------------------------------------------------------------------------


def when(run: Run, words: tuple[str, ...], holds: Callable[[Any], bool]) -> Any:
    """The document of a command, once it holds."""
    until = time.monotonic() + WAIT_S
    while not holds(found := json.loads(run(*words, "--json")[1])):
        assert time.monotonic() < until, found
    return found


def test_a_listener_that_hangs_is_found_with_message_and_member(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Hanging")
    options = {"orderly": True, "orderly_suspend_ms": 10, "consume_from": ConsumeFrom.FIRST}
    with stuck(running, admin, "Hanging", "Hanging", **options):
        words = ("group", "explain", "Hanging")
        found = when(run, words, lambda one: any(f["kind"] == "stuck" for f in one["findings"]))
        [one] = [one for one in found["findings"] if one["kind"] == "stuck"]
        assert (one["topic"], one["broker"], one["queue"]) == ("Hanging", "bee", 0)
        described = json.loads(run("group", "describe", "Hanging", "--json")[1])
        [member] = described["members"]
        [there] = described["stuck"]
        assert there["member"] == there["lock_owner"] == member["client_id"]
        assert there["head"]["message_id"] in one["cause"]
        assert (there["head"]["offset"], there["head"]["attempt"]) == (0, 1)
        code, out, err = run(*words)
        assert (code, there["head"]["message_id"] in out, err) == (0, True, "")
        assert there["head"]["message_id"] in run("group", "describe", "Hanging")[1]
        listed = json.loads(run("group", "list", "--json")[1])
        assert [one["stuck_queues"] for one in listed if one["group"] == "Hanging"] == [1]
        page = urllib.request.urlopen(f"http://{running.http}/metrics").read().decode()
        [line] = [
            line for line in page.splitlines()
            if line.startswith("aerobee_group_stuck_queues{") and 'topic="Hanging"' in line
        ]  # fmt: skip
        assert line.endswith(" 1.0")
    found = json.loads(run(*words, "--json")[1])
    assert [one["kind"] for one in found["findings"] if one["level"] == "problem"] == ["no_member"]


def test_groups_that_are_behind_are_listed_the_worst_first(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    for name, messages, offset in (("Worse", 9, 1), ("Bad", 4, 1), ("Good", 2, 2)):
        fill(running, admin, name, messages)
        admin.commit_offset(name, MessageQueue(name, "bee", 0), offset)

    def listed(*words: str) -> list[tuple[str, int]]:
        found = json.loads(run("group", "list", "--behind", *words, "--json")[1])
        ours = ("Worse", "Bad", "Good")
        return [(one["group"], one["lag"]) for one in found if one["group"] in ours]

    assert listed() == [("Worse", 8), ("Bad", 3)]
    assert listed("4") == [("Worse", 8)]
    code, out, err = run("group", "list", "--behind", "1000000")
    assert (code, out, "no group is behind by 1000000" in err) == (0, "", True)


def test_an_unknown_group_gets_the_nearest_name(
    running: RunningBroker, run: Run, admin: blocking_roles.Admin
) -> None:
    fill(running, admin, "Nearly")
    admin.commit_offset("NearestGroup", MessageQueue("Nearly", "bee", 0), 1)
    for command in ("describe", "explain"):
        code, _, err = run("group", command, "NearestGrop")
        assert (code, "did you mean NearestGroup?" in err) == (1, True)
