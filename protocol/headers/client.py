"""Typed headers of the requests that clients send while they work (WIRE.md 3.1 to 3.4, 3.8).

Attributes are the upstream fields in snake case, in the order required first. Extra fields of newer
clients (bname, ns, nsd, oway, lo) are ignored everywhere. Administration is in headers/admin.py.
"""

import struct
from collections.abc import Mapping
from typing import Self

import msgspec
from msgspec import field

from aerobee.protocol.codes import PROTOCOL_VERSION, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import OUR_LANGUAGE, RESPONSE_FLAG
from aerobee.protocol.frames.header_encode import binary_entries, binary_header, json_header
from aerobee.protocol.headers.fields import Header, Int32, Int64, parse_int

# Bits of a pull's sysFlag (protocol/WIRE.md 6.5).
PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
PULL_CLASS_FILTER = 8

# A number that stands nowhere else in the header of an answer.
_OPAQUE_MARK = 0x7FFFFFFF

_check_pull_widths = struct.Struct(">iqiiqqq").pack


class _PullFields(Header):
    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


class PullMessageHeader(_PullFields):
    """PULL_MESSAGE and LITE_PULL_MESSAGE; `expression_type` None or "" means TAG.

    `max_msg_bytes` is sent by 5.x clients: the most bytes of messages that they want at once.
    """

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """The direct way; whatever is wrong is left to the careful one to name."""
        try:
            queue_id = int(ext["queueId"])
            queue_offset = int(ext["queueOffset"])
            max_msg_nums = int(ext["maxMsgNums"])
            sys_flag = int(ext["sysFlag"])
            commit_offset = int(ext["commitOffset"])
            suspend_timeout_millis = int(ext["suspendTimeoutMillis"])
            sub_version = int(ext["subVersion"])
            _check_pull_widths(
                queue_id,
                queue_offset,
                max_msg_nums,
                sys_flag,
                commit_offset,
                suspend_timeout_millis,
                sub_version,
            )
            return cls(
                ext["consumerGroup"],
                ext["topic"],
                queue_id,
                queue_offset,
                max_msg_nums,
                sys_flag,
                commit_offset,
                suspend_timeout_millis,
                sub_version,
                ext.get("subscription"),
                ext.get("expressionType"),
                parse_int("maxMsgBytes", ext["maxMsgBytes"], 32) if "maxMsgBytes" in ext else None,
            )
        except (KeyError, ValueError, struct.error, BadRequest):
            return super().from_ext(ext)

    def without_filter(self) -> Self:
        """Return this pull without the texts of its filter."""
        return msgspec.structs.replace(self, subscription=None, expression_type=None)


class PullMessageResponse(msgspec.Struct, gc=False):
    """The fields of each answer to a pull that the store was asked for."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """BadRequest (code 1) when one of the four is missing or no number."""
        fields = _PullResponseFields.from_ext(ext)
        return cls(
            fields.suggest_which_broker_id,
            fields.next_begin_offset,
            fields.min_offset,
            fields.max_offset,
        )

    def to_ext(self) -> dict[str, str]:
        """The four fields as text."""
        return {
            "maxOffset": str(self.max_offset),
            "minOffset": str(self.min_offset),
            "nextBeginOffset": str(self.next_begin_offset),
            "suggestWhichBrokerId": str(self.suggest_which_broker_id),
        }


class PullReply:
    """The header of an answer with messages, cut where numbers go: maxOffset, minOffset,
    nextBeginOffset, suggestWhichBrokerId, and the opaque."""

    def __init__(self, remark: str) -> None:
        fields = PullMessageResponse(0, 0, 0, 0).to_ext()
        marks = {key: f"#{number}" for number, key in enumerate(fields)}
        common = (RESPONSE_FLAG, OUR_LANGUAGE, _OPAQUE_MARK, remark, PROTOCOL_VERSION)
        text = json_header(ResponseCode.SUCCESS, marks, *common).decode()
        for mark in (*marks.values(), str(_OPAQUE_MARK)):
            text = text.replace(mark, "\0")
        #: Six pieces: before, between and behind those five.
        self.json_parts = [part.encode() for part in text.split("\0")]
        length_bytes = len(binary_entries({"": ""})) - 2
        head = binary_header(ResponseCode.SUCCESS, None, *common)
        entries = [binary_entries({key: ""}) for key in fields]
        #: In the binary form the header up to the length of the fields, and each field's key; the
        #: opaque is some number.
        self.binary_parts = [part[:-length_bytes] for part in (head, *entries)]


class _PullResponseFields(Header):
    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class QueryMessageHeader(Header):
    """QUERY_MESSAGE; times in ms, `unique_key_query` is the extra field of the client's own."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool = field(default=False, name="_UNIQUE_KEY_QUERY")


class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID; `offset` is a commit log offset."""

    offset: Int64


class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT; either group may be absent."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerListHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP, GET_CONSUMER_CONNECTION_LIST, NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str


class QueryConsumerOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32


class UpdateConsumerOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class QueueHeader(Header):
    """GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32


class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP; `timestamp` in ms."""

    topic: str
    queue_id: Int32
    timestamp: Int64


class OffsetResponse(Header):
    """The answer to 14, 29, 30 and 31."""

    offset: Int64


class RecallMessageHeader(Header):
    """RECALL_MESSAGE; the handle says which message (`protocol/message/recall.py`)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK; `offset` is a commit log offset, delay level < 0 goes to the DLQ."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
