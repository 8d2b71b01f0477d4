"""The header of a send in its two spellings, and the answer: the hottest codecs of all.

Code 10 carries long field names, 310, 320 and 325 one letter each (protocol/WIRE.md 3.1); both
become one `SendMessageHeader`. Reading goes straight for the fields and falls back to the careful
way, which finds out what to complain about, only when something is missing or no number.
`SendReply` formats the answer from a template made once for a broker.
"""

import struct
from collections.abc import Mapping
from typing import Self

import msgspec

from aerobee.protocol.codes import LANGUAGE_CODES, PROTOCOL_VERSION, RequestCode
from aerobee.protocol.frames.command import OUR_LANGUAGE, RESPONSE_FLAG, Command, encode_response
from aerobee.protocol.frames.fastjson import quote
from aerobee.protocol.frames.header_encode import JSON, ROCKETMQ, binary_entries
from aerobee.protocol.headers.fields import (
    TRUE,
    Header,
    Int32,
    Int64,
    missing_field,
    parse_bool,
    parse_int,
)
from aerobee.protocol.message.properties import PROPERTY_MSG_REGION, PROPERTY_TRACE_ON

# Attribute order of SendMessageHeader.
LONG_KEYS = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
)
SHORT_KEYS = tuple("abcdefghijklm")
#: So many of them, from the first on, every send has.
REQUIRED_FIELDS = LONG_KEYS.index("properties")
#: How wide those are that are numbers.
NUMBER_BITS = {
    "defaultTopicQueueNums": 32,
    "queueId": 32,
    "sysFlag": 32,
    "bornTimestamp": 64,
    "flag": 32,
    "reconsumeTimes": 32,
    "maxReconsumeTimes": 32,
}
#: Either form marks a batch: the C++ client writes the second.
BATCH_MARKS = (TRUE, "1")
#: Between the ids in the answer to a batch.
ID_SEPARATOR = ","
_SHORT_CODES = frozenset(
    {
        int(RequestCode.SEND_MESSAGE_V2),
        int(RequestCode.SEND_BATCH_MESSAGE),
        int(RequestCode.SEND_REPLY_MESSAGE_V2),
    }
)
# Packing the numbers is the cheapest test that each fits its width.
_check_widths = struct.Struct(">iiiqiii").pack


class SendMessageHeader(msgspec.Struct, gc=False):
    """The fields of a send. `properties` is the text form, `born_timestamp` in client ms."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False

    @classmethod
    def from_command(cls, command: Command) -> Self:
        """The header of a send request of either spelling, chosen by its code.

        BadRequest (code 1) names the field that is missing or no number. `batch` is what makes a
        batch, not the code; "1" counts besides "true" because the C++ client marks its batches
        so (protocol/WIRE.md 8), which the reference stores as one message that consumers see empty.
        """
        keys = SHORT_KEYS if command.code in _SHORT_CODES else LONG_KEYS
        (
            group,
            topic,
            default_topic,
            queues,
            queue_id,
            sys_flag,
            born_timestamp,
            flag,
            properties,
            reconsume_times,
            unit_mode,
            max_reconsume_times,
            batch,
        ) = keys
        ext = command.ext
        try:
            queue_count = int(ext[queues])
            queue = int(ext[queue_id])
            flags = int(ext[sys_flag])
            born = int(ext[born_timestamp])
            user_flag = int(ext[flag])
            times = int(ext.get(reconsume_times, 0))
            most_text = ext.get(max_reconsume_times)
            most_times = None if most_text is None else int(most_text)
            _check_widths(queue_count, queue, flags, born, user_flag, times, most_times or 0)
            unit_text = ext.get(unit_mode, "false")
            batch_text = ext.get(batch, "false")
            return cls(
                ext[group],
                ext[topic],
                ext[default_topic],
                queue_count,
                queue,
                flags,
                born,
                user_flag,
                ext.get(properties, ""),
                times,
                unit_text != "false" and parse_bool(unit_text),
                most_times,
                batch_text != "false" and is_batch_mark(batch_text),
            )
        except (KeyError, ValueError, struct.error):
            return cls._from_keys(ext, keys)

    @classmethod
    def _from_keys(cls, ext: Mapping[str, str], keys: tuple[str, ...]) -> Self:
        def text(index: int) -> str:
            try:
                return ext[keys[index]]
            except KeyError:
                raise missing_field(keys[index]) from None

        def number(index: int) -> int:
            found = number_or_none(index)
            if found is None:
                raise missing_field(keys[index])
            return found

        def number_or_none(index: int) -> int | None:
            value = ext.get(keys[index])
            return parse_int(keys[index], value, NUMBER_BITS[LONG_KEYS[index]]) if value else None

        return cls(
            text(0),
            text(1),
            text(2),
            number(3),
            number(4),
            number(5),
            number(6),
            number(7),
            ext.get(keys[8], ""),
            number_or_none(9) or 0,
            parse_bool(ext.get(keys[10], "")),
            number_or_none(11),
            is_batch_mark(ext.get(keys[12], "")),
        )

    def to_ext(self) -> dict[str, str]:
        """The one-letter fields of 310 and 320."""
        return self._to_keys(SHORT_KEYS)

    def to_ext_long(self) -> dict[str, str]:
        """The long fields of code 10."""
        return self._to_keys(LONG_KEYS)

    def _to_keys(self, keys: tuple[str, ...]) -> dict[str, str]:
        ext = {
            keys[0]: self.producer_group,
            keys[1]: self.topic,
            keys[2]: self.default_topic,
            keys[3]: str(self.default_topic_queue_nums),
            keys[4]: str(self.queue_id),
            keys[5]: str(self.sys_flag),
            keys[6]: str(self.born_timestamp),
            keys[7]: str(self.flag),
            keys[8]: self.properties,
            keys[9]: str(self.reconsume_times),
            keys[10]: "true" if self.unit_mode else "false",
            keys[12]: "true" if self.batch else "false",
        }
        if self.max_reconsume_times is not None:
            ext[keys[11]] = str(self.max_reconsume_times)
        return ext


def is_batch_mark(text: str) -> bool:
    """Whether the batch field of a send means yes."""
    return text in BATCH_MARKS or parse_bool(text)


class SendMessageResponse(Header):
    """Where a message went; present for codes 0, 10, 11, 12. A batch has comma-joined ids."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    recall_handle: str | None = None


_BINARY_HEAD = struct.Struct(">IIhbhiiii")
_BINARY_HEAD_BYTES = _BINARY_HEAD.size - 8
_FRAME_WORDS = struct.Struct(">II")
_LENGTH = struct.Struct(">i")
# Keys of two entries.
_BINARY_QUEUE_ID = b"\0\7queueId"
_BINARY_QUEUE_OFFSET = b"\0\x0bqueueOffset"
_OUR_LANGUAGE_CODE = LANGUAGE_CODES[OUR_LANGUAGE]


class SendReply:
    """Answers to sends that were stored; region and trace switch are a broker's own."""

    def __init__(self, region: str, trace_on: bool) -> None:
        trace = "true" if trace_on else "false"
        self._fixed = {PROPERTY_MSG_REGION: region, PROPERTY_TRACE_ON: trace}
        fixed = f'"MSG_REGION":{quote(region)},"TRACE_ON":"{trace}"'.replace("%", "%%")
        self._json = (
            '{"code":0,"extFields":{'
            + fixed
            + ',"msgId":"%s","queueId":"%d","queueOffset":"%d"},"flag":1,"language":"'
            + OUR_LANGUAGE
            + '","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":'
            + f"{PROTOCOL_VERSION}}}"
        )
        # The fixed entries and the key of the first entry that varies.
        self._binary = binary_entries(self._fixed) + b"\0\5msgId"

    def json_parts(self) -> list[bytes]:
        """The header of an answer of success in JSON, around msgId, queueId, queueOffset and
        opaque."""
        parts = self._json.replace("%s", "%d").split("%d")
        return [part.replace("%%", "%").encode() for part in parts]

    def binary_parts(self) -> list[bytes]:
        """The parts of the answer in the binary form, before the lengths of msgId, queueId and
        queueOffset; opaque and the entries' length are 0."""
        head = _BINARY_HEAD.pack(
            0, 0, 0, _OUR_LANGUAGE_CODE, PROTOCOL_VERSION, 0, RESPONSE_FLAG, 0, 0
        )
        return [head[_FRAME_WORDS.size :] + self._binary, _BINARY_QUEUE_ID, _BINARY_QUEUE_OFFSET]

    def encode(
        self,
        request: Command,
        code: int,
        msg_id: str,
        queue_id: int,
        queue_offset: int,
        remark: str | None = None,
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        """The frame that tells where the message went; `msg_id` is plain hex and commas. `more`
        are further fields of an answer of success."""
        if code == 0 and remark is None and more is None:
            if request.serialization == JSON:
                header = (self._json % (msg_id, queue_id, queue_offset, request.opaque)).encode()
                length = len(header)
                return _FRAME_WORDS.pack(4 + length, length) + header
            if request.serialization == ROCKETMQ:
                return self._encode_binary(request.opaque, msg_id, queue_id, queue_offset)
        ext = {
            **self._fixed,
            "msgId": msg_id,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            **(more or {}),
        }
        return encode_response(request, code, remark, ext)

    def _encode_binary(self, opaque: int, msg_id: str, queue_id: int, queue_offset: int) -> bytes:
        fixed = self._binary
        id_bytes = msg_id.encode()
        queue_bytes = b"%d" % queue_id
        offset_bytes = b"%d" % queue_offset
        # 4 + (2 + 7 + 4) + (2 + 11 + 4): the id's length, then keys and lengths of the other two.
        entries_length = len(fixed) + 34 + len(id_bytes) + len(queue_bytes) + len(offset_bytes)
        length = _BINARY_HEAD_BYTES + entries_length
        return b"".join(
            (
                _BINARY_HEAD.pack(
                    4 + length,
                    ROCKETMQ << 24 | length,
                    0,
                    _OUR_LANGUAGE_CODE,
                    PROTOCOL_VERSION,
                    opaque,
                    RESPONSE_FLAG,
                    0,
                    entries_length,
                ),
                fixed,
                _LENGTH.pack(len(id_bytes)),
                id_bytes,
                _BINARY_QUEUE_ID,
                _LENGTH.pack(len(queue_bytes)),
                queue_bytes,
                _BINARY_QUEUE_OFFSET,
                _LENGTH.pack(len(offset_bytes)),
                offset_bytes,
            )
        )


class PushReplyHeader(Header):
    """The reply that was sent, without its place in a queue: hosts are `ip:port`, times are ms
    since 1970."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
