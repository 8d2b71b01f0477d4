"""The form of a message that waited when it is stored once more: pure values."""

import pytest

from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.message.properties import decode_properties
from aerobee.protocol.message.record import Message
from aerobee.protocol.names import TIMER_TOPIC
from aerobee.store.reading.delayed_messages import due_form
from aerobee.store.reading.timed_messages import HOUR_MS, delivered_form, rolled_form

_HOST = ("127.0.0.1", 10911)


def _waiting(properties: dict[str, str]) -> Message:
    named = {"REAL_TOPIC": "Orders", "REAL_QID": "3", **properties}
    return Message(
        TIMER_TOPIC, 7, 1, 5, 4096, 0, 1000, _HOST, 2000, _HOST, 1, 9, b"body", 0, named, 200
    )


@pytest.mark.parametrize("queue_id", ["", "-1", "x", "2147483648", "9" * 30])
def test_a_place_that_no_queue_can_have_is_damage(queue_id: str) -> None:
    with pytest.raises(CorruptRecord, match="REAL_QID"):
        due_form(_waiting({"REAL_QID": queue_id}))


def test_a_message_that_goes_on_waiting_loses_what_was_true_of_its_first_record() -> None:
    waiting = _waiting(
        {
            "TAGS": "a",
            "__CRC32#": "0123456789",
            "INNER_MULTI_QUEUE_OFFSET": "4",
            "TIMER_OUT_MS": "1",
        }
    )
    rolled = rolled_form(waiting, 3 * HOUR_MS)
    assert decode_properties(rolled.properties) == {
        "REAL_TOPIC": "Orders", "REAL_QID": "3", "TAGS": "a", "TIMER_OUT_MS": str(3 * HOUR_MS)
    }  # fmt: skip
    assert (rolled.topic, rolled.queue_id, rolled.tags_code) == (TIMER_TOPIC, 3, 3 * HOUR_MS)
    assert (rolled.body, rolled.flag, rolled.reconsume_times) == (b"body", 1, 1)
    assert rolled.prepared_transaction_offset == 0


def test_a_delivered_message_has_its_own_place_and_tag() -> None:
    delivered = delivered_form(_waiting({"TAGS": "a", "TIMER_OUT_MS": "1"}))
    assert (delivered.topic, delivered.queue_id, delivered.tags_code) == ("Orders", 3, 97)
    assert "TIMER_OUT_MS" not in decode_properties(delivered.properties)
