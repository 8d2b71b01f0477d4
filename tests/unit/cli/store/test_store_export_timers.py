"""`aerobee store export-timers` on stores that a broker has filled and left."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.client.blocking_roles import Producer, PullConsumer
from aerobee.client.message import Message, ReceivedMessage
from aerobee.config.model import Settings
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.inspect.audit_report import Level
from tests.unit.cli.store_support import store

LEVELS = "1s 4s"
SET = ("--set", f"messageDelayLevel={LEVELS}")
HOUR_S = 3600


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Three messages that a level reaches, two that none does, one of each recalled."""
    with (
        testing.broker(store_path=str(tmp_path), message_delay_levels=LEVELS) as running,
        Producer(running.name_server) as producer,
    ):
        for number in range(3):
            producer.send(Message("Orders", b"near %d" % number, keys="near", delay_s=3))
        for number in range(2):
            producer.send(Message("Orders", b"far %d" % number, keys="far", delay_s=HOUR_S))
        for delay_s in (3, HOUR_S):
            sent = producer.send(Message("Orders", b"recalled", delay_s=delay_s))
            producer.recall("Orders", sent.recall_handle)
    return tmp_path


def received(root: Path, expected: int) -> list[ReceivedMessage]:
    """The messages of the topic once `expected` have come, and no more is due for a while."""
    with (
        testing.broker(store_path=str(root), message_delay_levels=LEVELS) as running,
        PullConsumer(running.name_server) as consumer,
    ):
        deadline = time.monotonic() + 20
        while True:
            found = [
                message
                for queue in consumer.queues("Orders")
                for message in consumer.pull(queue, 0, wait_ms=0).messages
            ]
            if len(found) >= expected:
                return found
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_dry_run_says_what_would_be_and_stores_nothing(filled: Path) -> None:
    before = sum(path.stat().st_size for path in (filled / "consumequeue").rglob("*"))
    told = store("export-timers", filled, "--dry-run", "--json", *SET)
    assert told.code == 0
    assert told.json["levels"] == {"2": 3}
    assert told.json["recalled"] == 2
    assert [one["keys"] for one in told.json["kept"]] == ["far", "far"]
    assert sum(path.stat().st_size for path in (filled / "consumequeue").rglob("*")) == before
    assert store("export-timers", filled, "--dry-run", "--json", *SET).json == told.json


def test_what_a_level_reaches_is_stored_with_it_and_the_rest_listed_and_kept(
    filled: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    listing = tmp_path_factory.mktemp("list") / "kept.jsonl"
    told = store("export-timers", filled, "--list", listing, *SET)
    assert told.code == 0
    assert "3 messages are stored with delay level 2" in told.out
    assert "RocketMQ will not deliver these" in told.out
    kept = [json.loads(line) for line in listing.read_text().splitlines()]
    assert [(one["topic"], one["keys"]) for one in kept] == [("Orders", "far"), ("Orders", "far")]
    [hint] = [line for line in told.out.splitlines() if "store dump messages" in line]
    words = hint.replace("LOG_OFFSET", str(kept[1]["log_offset"])).partition("aerobee store ")[2]
    (shown,) = store(*words.split()).lines
    assert shown["body"] in ("far 0", "far 1")
    assert shown["properties"]["UNIQ_KEY"] == kept[1]["unique_id"]
    findings = verify(Settings.for_tests(store_path=str(filled), message_delay_levels=LEVELS))
    assert [one.what for one in findings.findings if one.level is Level.DAMAGE] == []

    again = store("export-timers", filled, "--json", *SET)
    assert (again.json["exported"], len(again.json["kept"])) == (0, 2)

    found = received(filled, 3)
    assert sorted(one.body for one in found) == [b"near 0", b"near 1", b"near 2"]
    for one in found:
        assert one.properties["DELAY"] == "2"
        assert one.store_timestamp_ms >= int(one.properties["TIMER_DELIVER_MS"])
    assert (filled / "consumequeue" / SCHEDULE_TOPIC / "1").is_dir()


def test_a_store_without_any_is_left_as_it_is(tmp_path: Path) -> None:
    with (
        testing.broker(store_path=str(tmp_path)) as running,
        Producer(running.name_server) as producer,
    ):
        # The sizes of an index that knows of one record, at log offset 0, cannot be told.
        for _ in range(3):
            producer.send(Message("Orders", b"plain"))
    told = store("export-timers", tmp_path)
    assert (told.code, told.err) == (0, "")
    assert told.out == "no message waits that a delay level reaches\n"


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    assert store("export-timers", tmp_path / "nowhere").code == 3
