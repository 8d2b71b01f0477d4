"""Claims about what is logged of retries that do not wait."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aerobee.broker import failed_messages
from aerobee.broker.failed_messages import FailedMessages
from aerobee.broker.stats import BrokerStats
from aerobee.broker.topics import TopicTable
from tests.unit.broker.clients_support import Tables


@pytest.fixture
def topics(tmp_path: Path) -> TopicTable:
    return Tables(tmp_path).topics


def counts(caplog: pytest.LogCaptureFixture, group: str) -> list[str]:
    """The counts that were logged for a group."""
    lines = map(logging.LogRecord.getMessage, caplog.records)
    wanted = f"group={group} topic="
    return [line.split("count=")[1].split()[0] for line in lines if wanted in line]


def test_each_retry_topic_is_logged_by_its_own_count(
    topics: TopicTable, caplog: pytest.LogCaptureFixture
) -> None:
    failed = FailedMessages(topics, BrokerStats())
    for _ in range(100):
        failed.retried_at_once("Busy")
    failed.retried_at_once("Late")
    assert counts(caplog, "Busy") == ["1", "2", "4", "8", "16", "32", "64"]
    assert counts(caplog, "Late") == ["1"]
    assert "group=Late topic=%RETRY%Late " in caplog.text
    assert "maxReconsumeTimes is used up quickly" in caplog.text


def test_retry_topics_past_the_limit_share_a_count(
    topics: TopicTable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_messages, "_TOPICS_COUNTED", 2)
    failed = FailedMessages(topics, BrokerStats())
    for number in range(10):
        failed.retried_at_once(f"G{number}")
    assert len(failed._retries) == 3
    assert [n for n in range(10) if counts(caplog, f"G{n}")] == [0, 1, 2, 3, 5, 9]
