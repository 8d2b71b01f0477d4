"""A model in a few lines of the topics, queues, offsets and groups that clients may see, and the
state machine that holds a real daemon to it (docs/reliability.md R15).

Hypothesis draws sequences of requests over one connection, with a restart and a kill -9 between
them, and makes a failing sequence as short as it can. The model is a list for each queue and a set
of offsets that may be right: after a kill a group may be at any offset that it has committed since
the last commit known to be on the disk, and at no other.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.message.batch import BatchItem, encode_batch
from tests.crash.judges.records import Record, records_of
from tests.crash.running.link import (
    COMMIT,
    CREATE_TOPIC,
    MAX_OFFSET,
    MIN_OFFSET,
    PULL,
    SEND,
    Link,
    log_offset_of,
    pull_fields,
    send_fields,
)
from tests.sim.forked_daemon import ForkedDaemon

#: Steps of a sequence.
STEPS = 30
TAGS, KEYS, GROUPS = ("a", "b", ""), ("k1", "k2"), ("GA", "GB")
#: A store is left behind after this number of sequences, so that its tables stay small.
SEQUENCES_A_STORE = 25
_MOST_PULLED = 32
_SETTINGS: dict[str, Any] = {
    "auto_create_topic": False,
    "commit_log_segment_bytes": 1 << 20,
    "consume_queue_segment_bytes": 400,
    "vip_port_enabled": False,
}


class Server:
    """The daemon under test and the one connection to it. Controls are subclasses that lie."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stores = itertools.count()
        self._sequences = 0
        self.restarts = self.kills = self.requests = 0
        self._daemon: ForkedDaemon | None = None
        self.root = folder

    def begin(self) -> str:
        """A new sequence; a prefix for its names."""
        if self._sequences % SEQUENCES_A_STORE == 0:
            self.close()
            self.root = self._folder / f"store-{next(self._stores)}"
            self._daemon = ForkedDaemon(self.root, **_SETTINGS)
            self._connect()
        self._sequences += 1
        return f"S{self._sequences}"

    @property
    def sequences(self) -> int:
        return self._sequences

    def call(self, code: int, ext: dict[str, object], body: bytes = b"") -> Command:
        self.requests += 1
        return self._link.call(code, ext, body)

    def restart(self) -> None:
        """Stop in order, start again."""
        assert self._daemon is not None
        self._link.__exit__()
        self._daemon.stop()
        self._daemon.start()
        self._connect()
        self.restarts += 1

    def kill(self) -> None:
        """kill -9, start again."""
        assert self._daemon is not None
        self._link.__exit__()
        self._daemon.kill()
        self._daemon.start()
        self._connect()
        self.kills += 1

    def close(self) -> None:
        if self._daemon is not None:
            self._link.__exit__()
            self._daemon.stop()
            shutil.rmtree(self.root)
            self._daemon = None

    def _connect(self) -> None:
        assert self._daemon is not None
        self._link = Link(self._daemon.port)


class LosesASend(Server):
    """A control: each seventh message is acknowledged by somebody who has not stored it."""

    _sends = 0

    def call(self, code: int, ext: dict[str, object], body: bytes = b"") -> Command:
        if code == SEND:
            self._sends += 1
            if self._sends % 7 == 0:
                answer = super().call(MAX_OFFSET, {"topic": ext["b"], "queueId": ext["e"]})
                answer.ext = {"queueOffset": answer.ext["offset"], "msgId": "0" * 32}
                return answer
        return super().call(code, ext, body)


class LosesAnOffset(Server):
    """A control: commits are answered and not made."""

    def call(self, code: int, ext: dict[str, object], body: bytes = b"") -> Command:
        if code == COMMIT:
            code = MAX_OFFSET
        return super().call(code, ext, body)


class GoesBack(Server):
    """A control: a kill takes the store back to where its first kill had found it."""

    def kill(self) -> None:
        assert self._daemon is not None
        kept = self.root.with_name("kept")
        self._link.__exit__()
        self._daemon.kill()
        if kept.exists():
            shutil.rmtree(self.root)
            shutil.copytree(kept, self.root)
        else:
            shutil.copytree(self.root, kept)
        self._daemon.start()
        self._connect()


@dataclass
class Message:
    """A message that was sent and acknowledged."""

    body: bytes
    tag: str
    key: str
    log_offset: int = -1


@dataclass
class Queue:
    """One queue of a topic."""

    messages: list[Message] = field(default_factory=list)
    #: The offsets that each group may be at; None: none was ever committed. The last offset is the
    #: last that was committed.
    committed: dict[str, list[int | None]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.messages)


class ProtocolModel(RuleBasedStateMachine):
    """`server` is set by the test."""

    server: ClassVar[Server]
    topics = Bundle("topics")

    def __init__(self) -> None:
        super().__init__()
        self.prefix = self.server.begin()
        self.names = itertools.count()
        self.bodies = itertools.count()
        self.queues: dict[str, list[Queue]] = {}
        self.restarts = self.kills = self.steps = 0

    # --- topics

    @initialize(target=topics, queues=st.integers(1, 3))
    def first_topic(self, queues: int) -> str:
        return self._make(queues)

    @rule(target=topics, queues=st.integers(1, 3))
    def make_topic(self, queues: int) -> str:
        return self._make(queues)

    def _make(self, queues: int) -> str:
        name = f"{self.prefix}-{next(self.names)}"
        self._configure(name, queues)
        self.queues[name] = [Queue() for _ in range(queues)]
        return name

    @rule(topic=topics)
    def add_a_queue(self, topic: str) -> None:
        queues = self.queues[topic]
        self._configure(topic, len(queues) + 1)
        queues.append(Queue())

    @rule(target=topics, topic=consumes(topics))
    def delete_topic(self, topic: str) -> Any:
        if len(self.queues) < 2:
            return topic
        answer = self.server.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        del self.queues[topic]
        self._is_gone(topic)
        return multiple()

    def _configure(self, name: str, queues: int) -> None:
        answer = self.server.call(
            CREATE_TOPIC,
            {
                "topic": name, "defaultTopic": "TBW102", "readQueueNums": queues,
                "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0, "order": "false",
            },
        )  # fmt: skip
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def _is_gone(self, topic: str) -> None:
        for code, fields in (
            (SEND, send_fields(topic, 0, {})),
            (PULL, pull_fields(topic, 0, 0, 0)),
        ):
            answer = self.server.call(code, fields)
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST, (answer.code, answer.remark)

    # --- sending

    def _message(self, tag: str, key: str, size: int) -> Message:
        return Message(b"%d:" % next(self.bodies) + b"x" * size, tag, key)

    @rule(
        topic=topics,
        queue_id=st.integers(0, 4),
        tag=st.sampled_from(TAGS),
        key=st.sampled_from(KEYS),
        size=st.sampled_from((0, 0, 10, 700, 20_000)),
    )
    def send(self, topic: str, queue_id: int, tag: str, key: str, size: int) -> None:
        one = self._message(tag, key, size)
        properties = {"KEYS": key, "WAIT": "true"} | ({"TAGS": tag} if tag else {})
        answer = self.server.call(SEND, send_fields(topic, queue_id, properties), one.body)
        if queue_id >= len(self.queues[topic]):
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer.remark
            return
        queue = self.queues[topic][queue_id]
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert int(answer.ext["queueOffset"]) == queue.end
        one.log_offset = log_offset_of(answer.ext["msgId"])
        queue.messages.append(one)

    @rule(
        topic=topics,
        queue_id=st.integers(0, 2),
        tags=st.lists(st.sampled_from(TAGS), min_size=1, max_size=40),
        broken=st.sampled_from((False, False, False, True)),
    )
    def send_batch(self, topic: str, queue_id: int, tags: list[str], broken: bool) -> None:
        queue_id %= len(self.queues[topic])
        messages = [self._message(tag, KEYS[0], 3) for tag in tags]
        body = encode_batch(
            [
                BatchItem(0, one.body, f"TAGS\1{one.tag}\2KEYS\1{one.key}\2".encode())
                for one in messages
            ]
        )
        fields = {**send_fields(topic, queue_id, {"WAIT": "true"}), "m": "true"}
        code = RequestCode.SEND_BATCH_MESSAGE
        answer = self.server.call(code, fields, body[:-1] if broken else body)
        if broken:
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
            return
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.queues[topic][queue_id].messages += messages

    # --- consuming

    @rule(
        topic=topics,
        queue_id=st.integers(0, 4),
        offset=st.integers(-2, 90),
        most=st.integers(1, 40),
        tag=st.sampled_from(("*", "a", "b", "a || b", "none")),
    )
    def pull(self, topic: str, queue_id: int, offset: int, most: int, tag: str) -> None:
        fields = {
            **pull_fields(topic, queue_id, offset, 0),
            "maxMsgNums": most,
            "subscription": tag,
        }
        answer = self.server.call(PULL, fields)
        if queue_id >= len(self.queues[topic]):
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer.remark
            return
        queue = self.queues[topic][queue_id]
        following = int(answer.ext["nextBeginOffset"])
        found = list(records_of(answer.body))
        if not 0 <= offset < queue.end:
            self._nothing_there(answer, queue, offset, following)
            return
        wanted = None if tag == "*" else set(tag.split(" || "))
        passed = queue.messages[offset:following]
        right = [one for one in passed if wanted is None or one.tag in wanted]
        assert offset < following <= queue.end
        assert [one.body for one in found] == [one.body for one in right]
        assert len(found) <= min(most, _MOST_PULLED)
        if right:
            assert answer.code == ResponseCode.SUCCESS
            first = passed.index(right[0])
            assert found[0].queue_offset == offset + first
        else:
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (int(answer.ext["minOffset"]), int(answer.ext["maxOffset"])) == (0, queue.end)

    def _nothing_there(self, answer: Command, queue: Queue, offset: int, following: int) -> None:
        is_at_end = offset == queue.end
        wanted = ResponseCode.PULL_NOT_FOUND if is_at_end else ResponseCode.PULL_OFFSET_MOVED
        assert answer.code == wanted, (answer.code, answer.remark)
        assert answer.body == b""
        if not is_at_end:
            assert following == (0 if offset < 0 else queue.end)

    @rule(
        topic=topics,
        queue_id=st.integers(0, 2),
        group=st.sampled_from(GROUPS),
        offset=st.integers(-1, 60),
    )
    def commit(self, topic: str, queue_id: int, group: str, offset: int) -> None:
        queue_id %= len(self.queues[topic])
        queue = self.queues[topic][queue_id]
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        answer = self.server.call(COMMIT, {**fields, "commitOffset": offset})
        if 0 <= offset <= queue.end:
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            queue.committed.setdefault(group, [None]).append(offset)
        else:
            assert answer.code == ResponseCode.SYSTEM_ERROR, answer.remark
        self._check_committed(topic, queue_id, group)

    @rule(topic=topics, queue_id=st.integers(0, 2), group=st.sampled_from(GROUPS))
    def query_offset(self, topic: str, queue_id: int, group: str) -> None:
        self._check_committed(topic, queue_id % len(self.queues[topic]), group)

    def _check_committed(self, topic: str, queue_id: int, group: str) -> None:
        """The group is where it has committed last."""
        queue = self.queues[topic][queue_id]
        history = queue.committed.get(group, [None])
        assert self._committed(topic, queue_id, group) == (history[-1] or 0)

    def _committed(self, topic: str, queue_id: int, group: str) -> int:
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        answer = self.server.call(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int(answer.ext["offset"])

    # --- looking up

    @rule(topic=topics, key=st.sampled_from(KEYS))
    def query_by_key(self, topic: str, key: str) -> None:
        fields: dict[str, object] = {
            "topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0,
            "endTimestamp": (time.time_ns() // 1_000_000) + 1_000_000,
        }  # fmt: skip
        answer = self.server.call(RequestCode.QUERY_MESSAGE, fields)
        every = [one for queue in self.queues[topic] for one in queue.messages if one.key == key]
        found = list(records_of(answer.body)) if answer.code == ResponseCode.SUCCESS else []
        assert answer.code == (ResponseCode.SUCCESS if every else ResponseCode.QUERY_NOT_FOUND)
        bodies = Counter(one.body for one in found)
        assert bodies <= Counter(one.body for one in every)
        if len(every) <= 30:
            assert len(found) == len(every)

    @rule(topic=topics, place=st.integers(0, 50))
    def view_by_id(self, topic: str, place: int) -> None:
        known = [
            one for queue in self.queues[topic] for one in queue.messages if one.log_offset >= 0
        ]
        if not known:
            return
        one = known[place % len(known)]
        answer = self.server.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": one.log_offset})
        [record] = records_of(answer.body)
        assert record.body == one.body

    # --- ends

    @precondition(lambda self: self.restarts < 1 and self._have_some())
    @rule()
    def restart(self) -> None:
        """Restart; all that was in memory is on the disk then."""
        self.restarts += 1
        self.server.restart()
        self._read_everything()

    @precondition(lambda self: self.kills < 1 and self._have_some())
    @rule()
    def kill(self) -> None:
        """Messages and topics are there; offsets may be those of a moment ago."""
        self.kills += 1
        self.server.kill()
        for topic, queues in self.queues.items():
            for queue_id, queue in enumerate(queues):
                for group, history in queue.committed.items():
                    at = self._committed(topic, queue_id, group)
                    assert at in {one or 0 for one in history}, (topic, queue_id, group, at)
                    queue.committed[group] = [at]
        self._read_everything()

    def _read_everything(self) -> None:
        for topic, queues in self.queues.items():
            for queue_id, queue in enumerate(queues):
                assert [one.body for one in self._all_of(topic, queue_id, queue.end)] == [
                    one.body for one in queue.messages
                ]
                for group in queue.committed:
                    self._check_committed(topic, queue_id, group)

    def _all_of(self, topic: str, queue_id: int, end: int) -> list[Record]:
        found: list[Record] = []
        while len(found) < end:
            answer = self.server.call(PULL, pull_fields(topic, queue_id, len(found), 0))
            assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
            found += records_of(answer.body)
        return found

    @invariant()
    def ends_are_right(self) -> None:
        """Look at one queue of each topic in turn: all queues at each step would be too many
        requests."""
        for topic, queues in self.queues.items():
            queue_id = next(self.bodies) % len(queues)
            where: dict[str, object] = {"topic": topic, "queueId": queue_id}
            answer = self.server.call(MAX_OFFSET, where)
            assert int(answer.ext["offset"]) == queues[queue_id].end
            assert int(self.server.call(MIN_OFFSET, where).ext["offset"]) == 0
            return

    @invariant()
    def there_is_an_end(self) -> None:
        """In the middle of a sequence that chance has given none. The number of messages says which
        kind: a sequence that is run again has to do the same."""
        self.steps += 1
        if self.steps < STEPS // 2 or self.restarts or self.kills or not self._have_some():
            return
        ends = sum(queue.end for queues in self.queues.values() for queue in queues)
        if ends % 2:
            self.kill()
        else:
            self.restart()

    def _have_some(self) -> bool:
        return any(map(_has_some, self.queues.values()))


def _has_some(queues: list[Queue]) -> bool:
    return any(queue.messages for queue in queues)
