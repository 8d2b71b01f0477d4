"""Each request of administrators has a decision: it is audited, or it only asks."""

from __future__ import annotations

from typing import Any, cast

from aerobee.access.administration import (
    ASKED_OF_BROKERS,
    AUDITED_OF_BROKERS,
    AUDITED_OF_NAME_SERVERS,
    OF_BROKERS,
)
from aerobee.broker.requests.administration.auditing.audited import audited_requests
from aerobee.config.model import Settings
from aerobee.protocol.bodies.audit import AUDIT_WORDS, OTHER_WORDS

# The table is made of these; no row asks them here.
NO_TABLES = cast("Any", type("Tables", (), dict.fromkeys(("topics", "groups", "offsets"))))


def test_each_request_of_administrators_is_audited_or_only_asks() -> None:
    """A new one stands in one of both sets of access/administration.py."""
    assert AUDITED_OF_BROKERS | ASKED_OF_BROKERS == OF_BROKERS
    assert not AUDITED_OF_BROKERS & ASKED_OF_BROKERS


def test_each_audited_request_says_how_it_is_told() -> None:
    assert audited_requests(Settings.for_tests(), NO_TABLES, None).keys() == AUDITED_OF_BROKERS


def test_each_audited_request_has_a_word_of_its_own() -> None:
    assert AUDIT_WORDS.keys() == AUDITED_OF_BROKERS | AUDITED_OF_NAME_SERVERS
    words = [*AUDIT_WORDS.values(), *OTHER_WORDS]
    assert len(set(words)) == len(words)
