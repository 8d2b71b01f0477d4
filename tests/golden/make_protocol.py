"""Makes tests/golden/protocol/: the bytes of every shape on the wire, built the plain way.

Nothing of Aerobee is used here, only struct, json and zlib, field after field as protocol/WIRE.md
lists them, so that a mistake in the codecs cannot hide in the expectation. Run it to write the
files anew; a test compares them with what it builds, so neither can drift.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent / "protocol"

V4_PEER = bytes([192, 0, 2, 7]) + struct.pack(">i", 54321)
V4_BROKER = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
V6_PEER = bytes.fromhex("20010db8000000000000000000000007") + struct.pack(">i", 54321)
V6_BROKER = bytes.fromhex("00000000000000000000000000000001") + struct.pack(">i", 10911)

PROPERTIES = (
    "KEYS\x01k1 k2\x02TAGS\x01TagA\x02UNIQ_KEY\x01C0000207000018B4AAC21234ABCD0001\x02CLUSTER\x01C1"
)
BODY = "héllo, wörld".encode()
EXT = {
    "a": "PG",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "TAGS\x01TagA\x02WAIT\x01true",
    "j": "0",
    "k": "false",
    "l": "16",
    "m": "false",
}


def frame(serialization: int, header: bytes, body: bytes = b"") -> bytes:
    words = struct.pack(">i", 4 + len(header) + len(body))
    return words + bytes([serialization]) + len(header).to_bytes(3, "big") + header + body


def json_header(**members: object) -> bytes:
    return json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def binary_header(
    code: int, language: int, version: int, opaque: int, flag: int, remark: str, ext: dict[str, str]
) -> bytes:
    entries = b""
    for key, value in ext.items():
        entries += struct.pack(">h", len(key.encode())) + key.encode()
        entries += struct.pack(">i", len(value.encode())) + value.encode()
    return (
        struct.pack(">h", code)
        + struct.pack(">b", language)
        + struct.pack(">h", version)
        + struct.pack(">i", opaque)
        + struct.pack(">i", flag)
        + struct.pack(">i", len(remark.encode()))
        + remark.encode()
        + struct.pack(">i", len(entries))
        + entries
    )


def msgpack_text(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 256
    return (bytes([0xA0 | len(data)]) if len(data) < 32 else bytes([0xD9, len(data)])) + data


def msgpack_header() -> bytes:
    # [310, 3, 409, 77, 0, nil, {"a": "PG", "b": "T"}]
    return (
        b"\x97"
        + b"\xcd\x01\x36"
        + b"\x03"
        + b"\xcd\x01\x99"
        + b"\x4d"
        + b"\x00"
        + b"\xc0"
        + b"\x82"
        + msgpack_text("a")
        + msgpack_text("PG")
        + msgpack_text("b")
        + msgpack_text("T")
    )


def record(
    born: bytes, store: bytes, sys_flag: int, body: bytes = BODY, properties: str = PROPERTIES
) -> bytes:
    topic = b"TopicTest"
    text = properties.encode()
    tail = b""
    tail += struct.pack(">I", 0xDAA320A7)
    tail += struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF)
    tail += struct.pack(">i", 3)  # queue id
    tail += struct.pack(">i", 11)  # flag
    tail += struct.pack(">q", 42)  # queue offset
    tail += struct.pack(">q", 123456789)  # log offset
    tail += struct.pack(">i", sys_flag)
    tail += struct.pack(">q", 1700000000000)  # born
    tail += born
    tail += struct.pack(">q", 1700000000123)  # stored
    tail += store
    tail += struct.pack(">i", 2)  # reconsume times
    tail += struct.pack(">q", 98765)  # prepared transaction offset
    tail += struct.pack(">i", len(body)) + body
    tail += struct.pack(">b", len(topic)) + topic
    tail += struct.pack(">h", len(text)) + text
    return struct.pack(">i", 4 + len(tail)) + tail


def batch_item(flag: int, body: bytes, properties: bytes) -> bytes:
    tail = struct.pack(">i", 0) + struct.pack(">i", 0) + struct.pack(">i", flag)
    tail += struct.pack(">i", len(body)) + body + struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", 4 + len(tail)) + tail


def counted(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def frames() -> dict[str, bytes]:
    request = json_header(
        code=310,
        extFields=EXT,
        flag=0,
        language="JAVA",
        opaque=77,
        serializeTypeCurrentRPC="JSON",
        version=409,
    )
    bare = json_header(
        code=106, flag=0, language="PYTHON", opaque=5, serializeTypeCurrentRPC="JSON", version=409
    )
    answer = json_header(
        code=17,
        extFields={},
        flag=1,
        language="PYTHON",
        opaque=77,
        remark='no "route" for\tTöpic',
        serializeTypeCurrentRPC="JSON",
        version=409,
    )
    sent = json_header(
        code=0,
        extFields={
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "msgId": "7F00000100002A9F000000000000007B",
            "queueId": "3",
            "queueOffset": "42",
        },
        flag=1,
        language="PYTHON",
        opaque=77,
        serializeTypeCurrentRPC="JSON",
        version=409,
    )
    sent_ext = {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": "7F00000100002A9F000000000000007B",
        "queueId": "3",
        "queueOffset": "42",
    }
    return {
        "frame-json-send.bin": frame(0, request, BODY),
        "frame-json-bare.bin": frame(0, bare),
        "frame-json-answer.bin": frame(0, answer),
        "frame-json-sent.bin": frame(0, sent),
        "frame-rocketmq-send.bin": frame(1, binary_header(310, 0, 409, 77, 0, "", EXT), BODY),
        "frame-rocketmq-answer.bin": frame(
            1, binary_header(17, 3, 409, 77, 1, "no route for Töpic", {}), b""
        ),
        "frame-rocketmq-sent.bin": frame(1, binary_header(0, 3, 409, 77, 1, "", sent_ext)),
        "frame-msgpack-send.bin": frame(2, msgpack_header(), BODY),
    }


def records() -> dict[str, bytes]:
    return {
        "record-v4-v4.bin": record(V4_PEER, V4_BROKER, 0x0),
        "record-v6-v4.bin": record(V6_PEER, V4_BROKER, 0x10),
        "record-v4-v6.bin": record(V4_PEER, V6_BROKER, 0x20),
        "record-v6-v6.bin": record(V6_PEER, V6_BROKER, 0x30),
        "record-bare.bin": record(V4_PEER, V4_BROKER, 0x0, b"", ""),
        "record-blank.bin": struct.pack(">i", 4096) + struct.pack(">I", 0xCBD43194),
        "batch.bin": batch_item(0, b"one", b"KEYS\x01k1")
        + batch_item(7, b"", b"")
        + batch_item(0, BODY, "TAGS\x01täg\x02".encode()),
        "properties.txt": PROPERTIES.encode(),
        "offset-id-v4.txt": (V4_BROKER + struct.pack(">q", 149)).hex().upper().encode(),
        "offset-id-v6.txt": (V6_BROKER + struct.pack(">q", 149)).hex().upper().encode(),
    }


def bodies() -> dict[str, bytes]:
    queue = '{"brokerName":"b-a","queueId":0,"topic":"T1"}'
    topic = (
        '{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T1","topicSysFlag":0,"writeQueueNums":4}'
    )
    version = '{"counter":4,"timestamp":1795178864021}'
    table = f'{{"dataVersion":{version},"topicConfigTable":{{"T1":{topic}}}}}'
    compact = (
        counted(version.encode())
        + struct.pack(">i", 1)
        + counted(b"T1 8 4 6 SINGLE_TAG")
        + counted(b"[]")
    )
    texts = {
        "body-heartbeat.json": '{"clientID":"10.0.0.1@123","consumerDataSet":[{"consumeFromWhere":'
        '"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG",'
        '"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,'
        '"codeSet":[65,66],"expressionType":"TAG","subString":"A||B","subVersion":1700000000000,'
        '"tagsSet":["A","B"],"topic":"T1"}],"unitMode":false}],'
        '"producerDataSet":[{"groupName":"PG"}]}',
        "body-lock.json": f'{{"clientId":"c","consumerGroup":"CG","mqSet":[{queue}]}}',
        "body-locked.json": f'{{"lockOKMQSet":[{queue}]}}',
        "body-consumers.json": '{"consumerIdList":["c1","c2"]}',
        "body-topic-table.json": table,
        "body-registration.json": '{"filterServerList":[],"topicConfigSerializeWrapper":'
        + table
        + "}",
        "body-route.json": '{"brokerDatas":[{"brokerAddrs":{"0":"1.1.1.1:10911","1":"1.1.1.2:10911"'
        '},"brokerName":"b-a","cluster":"C1","enableActingMaster":false}],"filterServerTable":{},'
        '"orderTopicConf":"b-a:4","queueDatas":[{"brokerName":"b-a","perm":6,"readQueueNums":4,'
        '"topicSysFlag":0,"writeQueueNums":4}]}',
        "body-route-upstream.json": '{"brokerDatas":[{"brokerAddrs":{0:"1.1.1.1:10911",'
        '1:"1.1.1.2:10911"},"brokerName":"b-a","cluster":"C1"}],"filterServerTable":{},'
        '"orderTopicConf":"b-a:4","queueDatas":[{"brokerName":"b-a","perm":6,"readQueueNums":4,'
        '"topicSysFlag":0,"writeQueueNums":4}]}',
        "body-clusters.json": '{"brokerAddrTable":{"b-a":{"brokerAddrs":{"0":"1.1.1.1:10911"},'
        '"brokerName":"b-a","cluster":"C1","enableActingMaster":false}},'
        '"clusterAddrTable":{"C1":["b-a"]}}',
        "body-consume-stats.json": f'{{"consumeTps":0.45,"offsetTable":{{{queue}:'
        '{"brokerOffset":6,"consumerOffset":2,"lastTimestamp":1795178859501}}}',
        "body-topic-stats.json": f'{{"offsetTable":{{{queue}:{{"lastUpdateTimestamp":0,'
        '"maxOffset":9,"minOffset":1}}}',
        "body-offsets-by-queue.json": f'{{"offsetTable":{{{queue}:7}}}}',
        "body-offsets-list.json": '{"offsetTable":[{"brokerName":"b-a","offset":7,"queueId":0,'
        '"topic":"T1"}]}',
        "body-kv.json": '{"table":{"a":"1","b":"ü"}}',
        "body-topics.json": '{"brokerAddr":"1.1.1.1:10911","topicList":["T1","T2"]}',
    }
    files = {name: text.encode() for name, text in texts.items()}
    files["body-registration-compact.bin"] = compact
    return files


def build() -> dict[str, bytes]:
    """Every golden file by name."""
    return {**frames(), **records(), **bodies()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, content in build().items():
        (FOLDER / name).write_bytes(content)
    print(f"{len(build())} files in {FOLDER}")


if __name__ == "__main__":
    main()
