"""Topics whose filter type is MULTI_TAG (protocol/WIRE.md 3.1)."""

from __future__ import annotations

from aerobee.protocol.codes import RequestCode
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.record import decode_records
from aerobee.protocol.message.record_layout import SYS_MULTI_TAGS
from tests.contract.conftest import Wire

BOTH_FORMS = True


async def test_a_topic_of_several_tags_marks_its_messages_those_of_a_batch_too(wire: Wire) -> None:
    ext = {
        "topic": "Several", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
        "perm": 6, "topicFilterType": "MULTI_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
    body = encode_batch([BatchItem(0, b"one", b"n\x011"), BatchItem(0, b"two", b"n\x012")])
    assert (await wire.send("Several", body, batch=True)).code == 0
    assert (await wire.send("Several", b"three")).code == 0
    answer = await wire.pull("Several")
    assert [one.body.decode() for one in decode_records(answer.body)] == ["one", "two", "three"]
    assert [one.sys_flag & SYS_MULTI_TAGS for one in decode_records(answer.body)] == [2, 2, 2]
