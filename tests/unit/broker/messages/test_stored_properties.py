"""The broker turns a client's property text into the text that is stored."""

from __future__ import annotations

import pytest

from aerobee.broker.messages.stored_properties import StoredProperties
from aerobee.broker.messages.stored_properties import stored_properties as judged_properties
from aerobee.protocol.codes import ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.message.demands import DELAY_LEVEL, TRANSACTION, Carrier


def text(**entries: str) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in entries.items())


def stored_properties(given: str, carrier: Carrier = Carrier.SINGLE) -> StoredProperties:
    """Those of one send, to a broker of the cluster C1."""
    return judged_properties(given, "C1", carrier, keep_wait=carrier is not Carrier.SINGLE)


def test_a_single_send_loses_wait_and_gains_the_cluster() -> None:
    properties = stored_properties(text(UNIQ_KEY="U1", WAIT="true", TAGS="TagA"))
    assert properties.encoded == b"UNIQ_KEY\x01U1\x02TAGS\x01TagA\x02CLUSTER\x01C1"
    assert properties.tags_code == 2598919
    assert properties.keys == ("U1",)
    assert properties.wait


def test_a_batch_keeps_wait() -> None:
    assert stored_properties(text(WAIT="false"), Carrier.BATCH).encoded == (
        b"WAIT\x01false\x02CLUSTER\x01C1"
    )


def test_wait_false_is_seen() -> None:
    assert not stored_properties(text(WAIT="false")).wait


def test_a_clients_own_cluster_is_replaced() -> None:
    assert stored_properties(text(CLUSTER="evil", A="1")).encoded == b"A\x011\x02CLUSTER\x01C1"


def test_a_trailing_separator_and_broken_entries_are_dropped() -> None:
    stored = stored_properties("A\x011\x02B\x01\x02\x01x\x02C\x02D\x012\x02").encoded
    assert stored == b"A\x011\x02D\x012\x02CLUSTER\x01C1"


def test_no_properties_at_all_still_carry_the_cluster() -> None:
    assert stored_properties("").encoded == b"CLUSTER\x01C1"


def test_every_word_of_keys_is_indexed_after_the_unique_key() -> None:
    assert stored_properties(text(KEYS="k1  k2", UNIQ_KEY="U")).keys == ("U", "k1", "k2")


def test_delay_and_transaction_are_seen() -> None:
    properties = stored_properties(text(DELAY="3", TRAN_MSG="true"))
    assert properties.demands == (TRANSACTION, DELAY_LEVEL)


@pytest.mark.parametrize(
    ("delay", "level"), [("+1", 1), ("-1", -1), ("00", 0), ("2147483647", 2**31 - 1), ("\uff11", 1)]
)
def test_a_delay_level_is_read_as_java_reads_numbers(delay: str, level: int) -> None:
    assert stored_properties(text(DELAY=delay)).demands == (DELAY_LEVEL,) * (level > 0)


@pytest.mark.parametrize(
    "delay",
    ["soon", " 1", "1_0", "1.0", "-", "+", "99999999999", "-2147483649", "1" * 5000, "x" * 5000],
)
def test_a_delay_level_that_is_no_number_is_refused_but_in_a_batch(delay: str) -> None:
    with pytest.raises(BadRequest, match=r"property DELAY must be .* got '") as caught:
        stored_properties(text(DELAY=delay))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert len(caught.value.remark) < 200
    inner = stored_properties(text(DELAY=delay), Carrier.IN_BATCH)
    assert inner.demands == ()
    assert inner.encoded == f"DELAY\x01{delay}\x02CLUSTER\x01C1".encode()
