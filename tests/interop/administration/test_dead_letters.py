"""Our commands about dead letters and single messages, against RocketMQ's broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aerobee.client.administration.resending import RESENT_FROM
from tests.interop.brokers import BROKER_NAME, Broker
from tests.unit.cli.delivery.delivery_support import dead_letters, give_back, read, runner, until


def test_dead_letters_of_a_java_broker_are_listed_sent_again_and_purged(
    java_broker: Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = runner(java_broker, capsys)
    ids = dead_letters(java_broker, "JavaDead", "JavaDeadTopic", b"a", b"b", broker=BROKER_NAME)

    def listed() -> int:
        rows = json.loads(run("dlq", "list", "--json")[1])
        return sum(one["messages"] for one in rows if one["group"] == "JavaDead")

    # Its name server hears of the topic a moment later.
    until(lambda: listed() == 2, within_s=40)
    until(lambda: run("dlq", "resend", "JavaDead")[0] == 0, within_s=40)
    assert run("dlq", "export", "JavaDead", str(tmp_path / "letters"))[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "letters").read_bytes().splitlines()]
    assert [one["msg_id"] for one in lines] == ids
    for _ in range(2):
        assert run("dlq", "resend", "JavaDead", "--yes")[0] == 0
    copies = read(java_broker, "%RETRY%JavaDead", BROKER_NAME)
    assert sorted(one.msg_id for one in copies if RESENT_FROM in one.properties) == sorted(ids)
    assert run("dlq", "purge", "JavaDead", "--yes")[0] == 0
    assert listed() == 0


def test_a_java_broker_tells_where_a_message_is_but_for_what_only_it_knows(
    java_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(java_broker, capsys)
    ids = dead_letters(java_broker, "JavaGone", "JavaShown", b"a", broker=BROKER_NAME)
    give_back(java_broker, "JavaWaits", "JavaShown", 5, BROKER_NAME)

    def states() -> dict[str, str]:
        code, out, _ = run("message", "show", ids[0], "--topic", "JavaShown", "--json")
        [shown] = json.loads(out)
        assert (code, shown["broker_tells_all"]) == (0, False)
        return {one["group"]: one["state"] for one in shown["groups"]}

    until(lambda: states() == {"JavaGone": "dead", "JavaWaits": "waits for its next try"})
