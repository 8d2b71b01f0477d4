"""Answers to what brokers ask of a push consumer (protocol/WIRE.md 3.8, 4.10, 4.11).

Members changed (40): rebalance now. Reset (220): take queues up again at given offsets. Status
(221), running info (307) and consuming one message directly (309) are for administrators' tools;
the broker passes our answers through unread.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import Any

from aerobee.client.consuming.assignment import Assignment
from aerobee.client.consuming.consumer_state import ConsumerState, TopicCounters, restore_topics
from aerobee.client.consuming.listener import Consumed
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.message import received
from aerobee.protocol.bodies.clients import subscription_members
from aerobee.protocol.bodies.common import parse_offset_table
from aerobee.protocol.codes import PROTOCOL_VERSION_NAME, RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, make_response
from aerobee.protocol.frames.fastjson import dumps
from aerobee.protocol.message.record import decode_record

_MIB = 1024 * 1024


class ConsumerRequests:
    """Answers brokers for one push consumer."""

    def __init__(self, state: ConsumerState, assignment: Assignment) -> None:
        self._state = state
        self._assignment = assignment
        self._started_ms = int(time.time() * 1000)

    async def answer(self, command: Command) -> Command | None:
        """The answer, or None for a oneway or an unknown request."""
        code = command.code
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._state.rebalances.wake()
        elif code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._reset(command)
        elif code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return self._success(command, self._status(command.ext.get("topic", "")))
        elif code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            with_stacks = command.ext.get("jstackEnable", "").lower() == "true"
            return self._success(command, self._running_info(with_stacks))
        elif code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._success(command, await self._consume_directly(command))
        return None

    def _success(self, command: Command, value: dict[str, Any]) -> Command:
        return make_response(command, ResponseCode.SUCCESS, body=dumps(value))

    def _reset(self, command: Command) -> None:
        for queue, offset in parse_offset_table(command.body).items():
            assigned = self._assignment.get(queue)
            if assigned is not None:
                self._assignment.release(assigned, reset_to=offset)

    def _status(self, topic: str) -> dict[str, Any]:
        offsets = {
            assigned.queue: assigned.committable
            for assigned in self._assignment.held()
            if assigned.queue.topic == topic
        }
        return {"consumerTable": {}, "messageQueueTable": offsets}

    def _running_info(self, with_stacks: bool) -> dict[str, Any]:
        options = self._state.options
        running_s = max(time.time() - self._started_ms / 1000, 1.0)
        counters = self._state.counters
        return {
            "jstack": _stacks() if with_stacks else None,
            "mqTable": {a.queue: _queue_info(a) for a in self._assignment.held()},
            "properties": {
                "PROP_CLIENT_VERSION": PROTOCOL_VERSION_NAME,
                "PROP_CONSUMEORDERLY": "true" if options.orderly else "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(self._state.session.name_servers),
                "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            },
            "statusTable": {
                topic: _topic_status(counter, running_s) for topic, counter in counters.items()
            },
            "subscriptionSet": [
                subscription_members(item) for item in self._state.subscriptions.values()
            ],
        }

    async def _consume_directly(self, command: Command) -> dict[str, Any]:
        """Give one message to the listener, past all queues and offsets, and say how it went."""
        name = command.ext.get("brokerName", "")
        messages = [received(decode_record(command.body), name)]
        restore_topics(self._state.group, messages)
        started = time.monotonic()
        consumed, error = await self._state.listener.outcome(messages)
        result = "CR_SUCCESS" if consumed is Consumed.SUCCESS else "CR_LATER"
        return {
            "autoCommit": True,
            "consumeResult": result if error is None else "CR_THROW_EXCEPTION",
            "order": self._state.options.orderly,
            "remark": None if error is None else repr(error),
            "spentTimeMills": int((time.monotonic() - started) * 1000),
        }


def _queue_info(assigned: ProcessQueue) -> dict[str, Any]:
    return {
        "cachedMsgCount": assigned.cached_count,
        "cachedMsgMaxOffset": assigned.newest_offset,
        "cachedMsgMinOffset": assigned.oldest_offset,
        "cachedMsgSizeInMiB": assigned.cached_bytes // _MIB,
        "commitOffset": assigned.committable,
        "droped": assigned.dropped,  # so spelt on the wire
        "lastConsumeTimestamp": int(assigned.last_consume_at * 1000),
        "lastLockTimestamp": 0,
        "lastPullTimestamp": int(assigned.last_pull_at * 1000),
        "locked": assigned.locked_at is not None,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def _topic_status(counters: TopicCounters, running_s: float) -> dict[str, Any]:
    done = counters.consumed + counters.failed
    return {
        "consumeFailedMsgs": counters.failed,
        "consumeFailedTPS": counters.failed / running_s,
        "consumeOKTPS": counters.consumed / running_s,
        "consumeRT": counters.listener_s * 1000 / done if done else 0.0,
        "pullRT": 0.0,
        "pullTPS": done / running_s,
    }


def _stacks() -> str:
    """The Python stack of every thread, in the place of Java's thread dump."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
