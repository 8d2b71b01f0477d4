"""PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply on its way to who asked (protocol/WIRE.md 3.1, 3.8).

The body of the request is the reply's, as its sender packed it.
"""

from aerobee.protocol.headers.fields import Header, Int32, Int64


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
