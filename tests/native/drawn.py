"""Drawn traffic: requests that clients send, that they might send, and that are not plain, in reads
that are cut anywhere."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.header_encode import JSON, ROCKETMQ
from aerobee.protocol.headers.send import SendMessageHeader
from aerobee.protocol.headers.stages import (
    Run,
    StageBatchHeader,
    StageChunkHeader,
    StagePart,
    chunk_crc,
    encode_chunk,
    encode_parts,
    stage_checksum,
)
from aerobee.protocol.message.batch import BatchItem, encode_batch
from tests.native.replayed import SETTINGS, Read

TOPICS = ("Orders", "Goods", "Ordered", "ManyTags")
GROUP = "takers"

_NAMES = ("UNIQ_KEY", "KEYS", "TAGS", "WAIT", "a", "INSTANCE_ID", "longer name")
_VALUES = ("x", "TagA", "k1 k2  k3", "true", "false", "0", "7F0000010A2B18B4AAC2", "a=b", "q" * 300)
# Each of them alone makes a message one for the plain path.
_REFUSED = ("TRAN", "TIME")
_ODD = (
    "DELAY\x013", "DELAY\x01x", "TRAN_MSG\x01true", "TIMER_DELAY_SEC\x015", "CLUSTER\x01theirs",
    "WAIT\x01TRUE", "WAIT\x01x", "__SHARDINGKEY\x01s", "n\x01\u00e9\u4e16", "\U0001f600\x01v",
    "TIMER_OUT_MS\x011",
    "__CRC32#\x01123", "INNER_MULTI_DISPATCH\x01a,b", "quoted\x01\"\\/", "n\x01tab\t",
)  # fmt: skip


def traffic(
    chance: random.Random, requests: int, connections: int = 2, hurt: float = 0.0
) -> list[Read]:
    """Reads with `count` requests in all, a part of them hurt; first the topics and the group are
    made."""
    reads = [Read(0, one, awaited=True) for one in topics_made()]
    streams = [
        [
            _hurt(chance, frame) if chance.random() < hurt else frame
            for frame in (_request(chance, number) for number in range(requests // connections))
        ]
        for _ in range(connections)
    ]
    pieces = [list(_cut(chance, stream)) for stream in streams]
    while any(pieces):
        connection = chance.choice([n for n, left in enumerate(pieces) if left])
        reads.append(Read(connection, pieces[connection].pop(0)))
    return reads


def staged(chance: random.Random, batches: int) -> list[Read]:
    """Reads in which batches are staged in chunks and decided, and messages are sent meanwhile."""
    reads = [Read(0, one, awaited=True) for one in topics_made()]
    for number in range(batches):
        chunks = [_rows_of_chunk(chance) for _ in range(chance.randint(1, 3))]
        stage = f"{chance.getrandbits(128):032x}"
        crcs = []
        for place, (count, body) in enumerate(chunks):
            crcs.append(chunk_crc(body))
            header = StageChunkHeader("q", number, 0, stage, place, count, crcs[-1])
            code = RequestCode.STAGE_CHUNK
            frame = Command(code=code, ext=header.to_ext(), body=body, opaque=number).encode()
            reads.append(Read(0, frame, awaited=True))
            reads.append(Read(1, _send(chance, number)))
        rows = sum(count for count, _ in chunks)
        part = StagePart(SETTINGS["broker_name"], 0, stage, len(chunks), rows, stage_checksum(crcs))
        intent = Command(
            code=RequestCode.STAGE_INTENT,
            ext=StageBatchHeader("q", number).to_ext(),
            body=encode_parts([part]),
            opaque=number,
        ).encode()
        reads.append(Read(0, intent, awaited=True))
    return reads


def _rows_of_chunk(chance: random.Random) -> tuple[int, bytes]:
    """How many rows, and the chunk's body; some have what a chunk is refused for."""
    runs = []
    room = SETTINGS["max_message_bytes"] - 1000
    for _ in range(chance.randint(1, 4)):
        items: list[BatchItem] = []
        oddness = chance.choice((0.0, 0.0, 0.02, 0.5))
        for _ in range(chance.choice((1, 3, 20, 130, 300))):
            body = chance.randbytes(chance.choice((1, 1, 10, 64)))
            text = _properties(chance) if chance.random() < oddness else _plain_properties(chance)
            if chance.random() < 0.9:
                text = "\x02".join(one for one in text.split("\x02") if one[:4] not in _REFUSED)
            items.append(BatchItem(chance.choice((0, 5)), body, text.encode()))
            room -= 22 + len(body) + len(items[-1].properties)
            if room < 0:
                items.pop()
                break
        if items:
            topic = chance.choice(("Orders", "Goods", "ManyTags"))
            runs.append(Run(topic, chance.randrange(4), len(items), encode_batch(items)))
    return sum(run.rows for run in runs), encode_chunk(runs)


def topics_made() -> Iterator[bytes]:
    for number, topic in enumerate(TOPICS):
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
            "perm": "6", "topicFilterType": "MULTI_TAG" if topic == "ManyTags" else "SINGLE_TAG",
            "topicSysFlag": "0", "order": "true" if topic == "Ordered" else "false",
        }  # fmt: skip
        yield Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext, opaque=number).encode()
    group = json.dumps({"groupName": GROUP}).encode()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    yield Command(code=code, body=group, opaque=9).encode()
    beat = {
        "clientID": "one",
        "consumerDataSet": [
            {
                "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [
                    {
                        "topic": topic, "subString": tags, "expressionType": "TAG",
                        "tagsSet": [] if tags == "*" else tags.split(" || "),
                        "codeSet": [] if tags == "*" else [2598919], "subVersion": 1,
                    }
                    for topic, tags in (("Orders", "*"), ("Goods", "TagA"))
                ],
            }
        ],
        "producerDataSet": [],
    }  # fmt: skip
    yield Command(code=RequestCode.HEART_BEAT, body=json.dumps(beat).encode(), opaque=10).encode()


def _hurt(chance: random.Random, frame: bytes) -> bytes:
    """A frame of the same length, in whose header or body something is wrong."""
    hurt = bytearray(frame)
    end = 8 + (int.from_bytes(frame[4:8], "big") & 0xFFFFFF)
    kind = chance.random()
    if kind < 0.3:
        for _ in range(chance.randint(1, 3)):
            hurt[chance.randrange(8, end)] = chance.choice(
                (0, 1, 34, 44, 48, 92, 125, 127, 200, 255)
            )
    elif kind < 0.5:
        # Another piece replaces a part of a text or a number.
        at, size = chance.randrange(8, end), chance.randint(1, 12)
        taken = chance.randrange(8, end)
        piece = hurt[taken : min(end, taken + size)][: end - at]
        hurt[at : at + len(piece)] = piece
    elif kind < 0.65:
        hurt[chance.randrange(8, end)] ^= 1 << chance.randrange(8)
    elif kind < 0.9:
        # In a batch that hits lengths, as often as not.
        for _ in range(chance.randint(1, 3) if end < len(hurt) else 0):
            at = chance.randrange(end, min(len(hurt), end + 200))
            hurt[at] = chance.choice((0, 1, 2, 127, 128, 255, hurt[at] ^ 1))
    else:
        # The header ends elsewhere, or is of another kind.
        hurt[chance.choice((4, 5, 6, 7))] ^= 1 << chance.randrange(8)
    return bytes(hurt)


def _cut(chance: random.Random, frames: list[bytes]) -> Iterator[bytes]:
    """The stream in pieces: some frames at once, now and then cut anywhere."""
    at = 0
    left = b""
    while at < len(frames) or left:
        count = chance.choice((1, 1, 2, 2, 3, 12))
        piece = left + b"".join(frames[at : at + count])
        at += count
        size = chance.randint(1, len(piece)) if chance.random() < 0.2 else len(piece)
        yield piece[:size]
        left = piece[size:]


def _request(chance: random.Random, number: int) -> bytes:
    kind = chance.random()
    if kind < 0.55:
        return _send(chance, number)
    if kind < 0.7:
        return _batch(chance, number)
    if kind < 0.98:
        return _pull(chance, number)
    code = chance.choice((RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, 9999))
    ext = {"topic": chance.choice(TOPICS), "queueId": str(chance.randrange(4))}
    return Command(code=code, ext=ext, opaque=number).encode()


def _serialization(chance: random.Random) -> int:
    return chance.choice((JSON, JSON, ROCKETMQ))


def _properties(chance: random.Random) -> str:
    entries = []
    for _ in range(chance.randint(0, 6)):
        name = chance.choice(_NAMES)
        values = ("true", "false") if name == "WAIT" else _VALUES
        entries.append(f"{name}\x01{chance.choice(values)}")
    if chance.random() < 0.03:
        entries.insert(chance.randint(0, len(entries)), chance.choice(_ODD))
    if chance.random() < 0.03:
        entries.insert(chance.randint(0, len(entries)), chance.choice(("", "\x01v", "n\x01", "n")))
    return "\x02".join(entries) + chance.choice(("", "\x02"))


def _plain_properties(chance: random.Random) -> str:
    names = chance.sample(("UNIQ_KEY", "KEYS", "TAGS", "a", "longer name"), chance.randint(0, 3))
    text = "\x02".join(f"{name}\x01{chance.choice(_VALUES)}" for name in names)
    return text + chance.choice(("", "\x02")) if text else ""


def _body(chance: random.Random) -> bytes:
    most = SETTINGS["max_message_bytes"]
    size = (
        most + chance.randint(-2, 2) if chance.random() < 0.01 else chance.choice((0, 1, 64, 900))
    )
    return chance.randbytes(size)


def _header(chance: random.Random, *, batch: bool) -> SendMessageHeader:
    odd = chance.random() < 0.005
    return SendMessageHeader(
        producer_group="makers",
        topic=chance.choice(("Absent", "%RETRY%takers", "SCHEDULE_TOPIC_XXXX")) if odd
        else chance.choice(TOPICS),
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=chance.choice((-1, 4, 99)) if chance.random() < 0.01 else chance.randrange(4),
        sys_flag=chance.choice((4, 8, 16)) if chance.random() < 0.01 else chance.choice((0, 1)),
        born_timestamp=1_700_000_000_000 + chance.randrange(10**6),
        flag=chance.choice((0, 7, -1, 2**31 - 1)),
        properties="" if batch else _properties(chance),
        reconsume_times=chance.choice((0, 0, 3)),
        unit_mode=chance.random() < 0.005,
        batch=batch,
    )  # fmt: skip


def _send(chance: random.Random, number: int) -> bytes:
    header = _header(chance, batch=False)
    long = chance.random() < 0.3
    code = RequestCode.SEND_MESSAGE if long else RequestCode.SEND_MESSAGE_V2
    return Command(
        code=code,
        ext=header.to_ext_long() if long else header.to_ext(),
        body=_body(chance),
        opaque=number,
        flag=2 if chance.random() < 0.01 else 0,
        serialization=_serialization(chance),
    ).encode()


def _batch(chance: random.Random, number: int) -> bytes:
    items = [
        BatchItem(chance.choice((0, 5)), _body(chance), _properties(chance).encode())
        for _ in range(chance.choice((1, 2, 5, 20, 127, 128)) if chance.random() < 0.3 else 3)
    ]
    body = encode_batch(items)
    if chance.random() < 0.02:
        body = body[: chance.randrange(len(body))]
    header = _header(chance, batch=True)
    return Command(
        code=RequestCode.SEND_BATCH_MESSAGE,
        ext=header.to_ext(),
        body=body,
        opaque=number,
        serialization=_serialization(chance),
    ).encode()


def _pull(chance: random.Random, number: int) -> bytes:
    # Some drawn pulls ask for messages that are not there yet; none may wait, which takes time.
    own = chance.random() < 0.5
    ext = {
        "consumerGroup": GROUP if chance.random() < 0.97 else "nobody",
        "topic": chance.choice(TOPICS),
        "queueId": str(chance.choice((4, -1)) if chance.random() < 0.005 else chance.randrange(4)),
        "queueOffset": str(chance.choice((0, 1, 1, 2, 3, 5, 8, 12, 17, 25, 40, 60, 250))),
        "maxMsgNums": str(chance.choice((1, 3, 32, 32, 32, 1000))),
        "sysFlag": str((4 if own else 0) | chance.choice((0, 1))),
        "commitOffset": str(chance.choice((0, 1, 3))),
        "suspendTimeoutMillis": "0",
        "subVersion": chance.choice(("0", "1")) if own else "1",
    }
    if own:
        ext["subscription"] = chance.choice(("*", "TagA", "TagA || x", ""))
        ext["expressionType"] = "SQL92" if chance.random() < 0.03 else "TAG"
        if ext["expressionType"] == "SQL92":
            ext["subscription"] = "a = 'x'"
    if chance.random() < 0.02:
        ext["maxMsgBytes"] = "4096"
    return Command(
        code=chance.choice((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)),
        ext=ext,
        opaque=number,
        serialization=_serialization(chance),
    ).encode()
