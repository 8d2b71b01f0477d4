"""QUERY_CONSUME_QUEUE: the entries of a consume queue as they stand (protocol/WIRE.md 3.6).

For people who look for what a consumer does not get (`mqadmin queryCq`). With a group the answer
says what that subscribes to, and of entries that have an extension whether its filter takes them.
"""

from __future__ import annotations

from aerobee.broker.routing.router import Handler
from aerobee.broker.tables.clients import ClientTable
from aerobee.protocol.bodies.clients import subscription_members
from aerobee.protocol.bodies.queues import QueueData, encode_consume_queue
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters.subscription import Subscription
from aerobee.protocol.frames.command import Command, encode_response
from aerobee.protocol.frames.fastjson import dumps
from aerobee.protocol.headers.admin import ConsumeQueueHeader
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.turns import Steps
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.consume_queue_ext import ExtEntry
from aerobee.store.reading.search import SeenEntry

#: Entries of one answer at most.
MOST_ENTRIES = 4096
# Entries that are read and written in one step.
_STEP = 16


class QueueRequests:
    """Serves administrators. Loop thread only."""

    def __init__(self, clients: ClientTable, store: MessageStore) -> None:
        self._clients = clients
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The handlers by request code."""
        return {RequestCode.QUERY_CONSUME_QUEUE: self.entries}

    def entries(self, _connection: Connection, command: Command) -> Steps:
        """Entries from an offset on. Outside of the queue it is a success without a body."""
        header = ConsumeQueueHeader.from_ext(command.ext)
        topic, queue_id = header.topic, header.queue_id
        if not self._store.search.has_queue(topic, queue_id):
            raise BadRequest.system_error(f"{queue_id}@{topic} is not exist!")
        least, most = (
            self._store.min_offset(topic, queue_id),
            self._store.max_offset(topic, queue_id),
        )
        if not least <= header.index < most:
            remark = f"Index {header.index} of {queue_id}@{topic} is not exist! It has {least} to "
            return encode_response(command, ResponseCode.SUCCESS, f"{remark}{most - 1}")
        subscription = None
        if header.consumer_group:
            subscription = self._clients.subscription(header.consumer_group, topic)
        found: list[bytes] = []
        offset, end = header.index, header.index + min(header.count, MOST_ENTRIES)
        while offset < end:
            entries = self._store.search.entries(topic, queue_id, offset, min(end - offset, _STEP))
            if not entries:
                break
            found += [dumps(_queue_data(one, subscription)) for one in entries]
            offset += len(entries)
            yield None
        body = encode_consume_queue(
            least,
            most,
            found,
            None if subscription is None else subscription_members(subscription),
            _filter_text(header, subscription),
        )
        return encode_response(command, ResponseCode.SUCCESS, None, body=body)


def _filter_text(header: ConsumeQueueHeader, subscription: Subscription | None) -> str | None:
    if not header.consumer_group:
        return None
    if subscription is None:
        return f"{header.consumer_group}@{header.topic} is not online!"
    # Filters by tags have no data of their own; the reference writes the missing one so.
    return "null"


def _queue_data(seen: SeenEntry, subscription: Subscription | None) -> QueueData:
    entry, extension = seen.entry, seen.extension
    if not seen.is_address:
        return QueueData(*entry)
    if extension is None:
        return QueueData(*entry, remark=f"Cq extend not exist!addr: {entry.tags_code}")
    codes = None if subscription is None else subscription.codes
    return QueueData(
        *entry,
        is_match=codes is not None and (not codes or extension.tags_code in codes),
        extension=dumps(_extension_members(extension)).decode(),
        bit_map=_bits(extension.bit_map) if extension.bit_map else None,
    )


def _extension_members(extension: ExtEntry) -> dict[str, object]:
    return {
        "filterBitMap": extension.bit_map or None,
        "msgStoreTime": extension.store_ms,
        "size": extension.size,
        "tagsCode": extension.tags_code,
    }


def _bits(data: bytes) -> str:
    """The last byte first, a line for each eight bytes."""
    texts = [f"{byte:08b}" + ("" if place % 8 else "\n") for place, byte in enumerate(data)]
    return "".join(reversed(texts))
