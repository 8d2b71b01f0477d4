"""A broker's staging around a real store, with a loop that turns when a test says so."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from aerobee.access.control import AccessControl
from aerobee.broker.appending.answers import Answers
from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.delay.delay_service import ScheduleMessageService
from aerobee.broker.delay.delivery_progress import DelayProgress
from aerobee.broker.routing.role import Role
from aerobee.broker.staging.staging import Staging
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.topics import TopicTable
from aerobee.config.model import Settings
from aerobee.protocol.bodies.routes import PERM_READ_WRITE
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.headers.stages import (
    Run,
    StageBatchHeader,
    StageChunkHeader,
    StagePart,
    chunk_crc,
    encode_chunk,
    encode_names,
    encode_parts,
    stage_checksum,
)
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.properties import encode_properties
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.remoting.turns import Steps, Turns
from aerobee.store.message_store import MessageStore
from aerobee.summed_log import SummedLog
from tests.inline_loop import INLINE, drive
from tests.unit.broker.appending.appending_support import appending
from tests.unit.broker.second_step.second_step_support import deletions, retries_of, second_step
from tests.unit.broker.tables.clients_support import BODIES, NOW_MS, Peer, request
from tests.unit.store.support import HOST, read_all, small_settings

BROKER = "b-a"
TOPICS = ("Orders", "Audit")
LEVELS = 18


class Handle:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """The part of an event loop that staging needs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ready: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[..., object], *_: object) -> Handle:
        self.ready.append(Handle(call))
        return self.ready[-1]

    def call_later(self, _after_s: float, call: Callable[..., object]) -> Handle:
        return self.call_soon(call)

    def run_in_executor(self, _: None, call: Callable[..., object], *args: object) -> Any:
        future: asyncio.Future[object] = asyncio.Future(loop=asyncio.new_event_loop())
        future.set_result(call(*args))
        return future

    def turn(self) -> bool:
        """Run what is ready now; whether there was anything."""
        ready, self.ready = self.ready, []
        for handle in ready:
            if handle.call is not None:
                handle.call()
        return bool(ready)


class Desk:
    """Requests to the staging of one store; `now_ms` is its wall clock.

    `delays`: delayed messages are stored where they wait, and stay there.
    """

    def __init__(
        self,
        path: Path,
        *,
        delays: bool = False,
        control: AccessControl | None = None,
        sets_aside: bool = False,
        role: Role | None = None,
        **changes: object,
    ) -> None:
        values: dict[str, object] = {
            "commit_log_segment_bytes": 1 << 16,
            "broker_name": BROKER,
            "flush_disk_type": "ASYNC_FLUSH",
        }
        settings = small_settings(path, **(values | changes))
        self.path = path
        self.role = role or Role(Settings.for_tests())
        self.now_ms = NOW_MS
        self.loop = Loop()
        self.turns = Turns()
        self.turns._loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.sums = SummedLog(self.loop.time)
        self.stats = BrokerStats()
        self.store = MessageStore.open(settings)
        self.topics = TopicTable(
            Settings.for_tests(
                broker_name=BROKER, cluster_name="C1", max_topics=1000, auto_create_per_minute=1000
            ),
            JsonStateFile(path / "config" / "topics.json"),
            lambda: NOW_MS,
            INLINE,
        )
        for topic in TOPICS:
            self.topics.update(TopicConfig(topic, 4, 4, PERM_READ_WRITE)).result()
        self.deleted = deletions(path / "config", self.store.written)
        self.second_step = second_step(self.topics.get, self.deleted)
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.answers = Answers(settings, loop, self.turns, self.store, self.stats)
        self.staging = Staging(
            self._appending(settings, self.stats),
            self.topics,
            JsonStateFile(path / "config" / "stages.json", sets_aside=sets_aside),
            loop=loop,
            turns=self.turns,
            bodies=BODIES,
            sums=self.sums,
            intents=self.answers.intents,
            second_step=self.second_step,
            delays=self._delays(settings) if delays else None,
            control=control,
        )
        self._handlers = self.staging.handlers()
        self.peer = Peer(1)
        self.peer.packed_peer = HOST  # type: ignore[attr-defined]

    def _appending(self, settings: Settings, stats: BrokerStats) -> Appending:
        return appending(
            self.store,
            settings,
            stats=stats,
            clock_ms=lambda: self.now_ms,
            appended=lambda: None,
            role=self.role,
        )

    def _delays(self, settings: Settings) -> ScheduleMessageService:
        file = JsonStateFile(self.path / "config" / "delayOffset.json")
        return ScheduleMessageService(
            self._appending(settings, BrokerStats()),
            loop=cast("asyncio.AbstractEventLoop", self.loop),
            progress=DelayProgress(file, lambda: self.store.durable),
            second_step=self.second_step,
            retries=retries_of(self.store),
        )

    def start(self) -> Desk:
        self.staging.lead(anew=False)
        return self

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command | None:
        """The answer, None if it waits; raises BadRequest as the handler does."""
        command = request(code, cast("dict[str, Any]", ext))
        command.body = body
        data = drive(self._handlers[code](self.peer.connection, command))
        return None if data is None else FrameDecoder().feed(data)[0]

    def steps(self, code: int, key: tuple[str, int], body: bytes) -> Steps:
        """A request whose steps the test runs."""
        command = request(code, cast("dict[str, Any]", StageBatchHeader(*key).to_ext()))
        command.body = body
        return cast("Steps", self._handlers[code](self.peer.connection, command))

    # --- what a job does --------------------------------------------------------------------

    def chunk(
        self, key: tuple[str, int], part: int, stage: str, number: int, rows: Sequence[Row]
    ) -> int:
        body = encode_chunk(runs_of(rows))
        header = StageChunkHeader(*key, part, stage, number, len(rows), chunk_crc(body))
        answer = self.call(RequestCode.STAGE_CHUNK, header.to_ext(), body)
        assert answer is not None
        assert answer.code == 0
        return chunk_crc(body)

    def stage(
        self, key: tuple[str, int], part: int, rows: Sequence[Row], size: int = 4
    ) -> StagePart:
        """Stage rows in chunks of `size`."""
        name = uuid.uuid4().hex
        crcs = [
            self.chunk(key, part, name, number, rows[start : start + size])
            for number, start in enumerate(range(0, len(rows), size))
        ]
        return StagePart(BROKER, part, name, len(crcs), len(rows), stage_checksum(crcs))

    def intent(
        self, key: tuple[str, int], parts: Sequence[StagePart], *, first: bool = False
    ) -> None:
        ext = StageBatchHeader(*key, first=first).to_ext()
        assert self.call(RequestCode.STAGE_INTENT, ext, encode_parts(parts)) is None

    def status(self, key: tuple[str, int], wait_ms: int = 0) -> Command | None:
        return self.call(RequestCode.STAGE_STATUS, StageBatchHeader(*key, wait_ms).to_ext())

    def state(self, key: tuple[str, int]) -> str:
        answer = self.status(key)
        assert answer is not None
        return answer.ext["state"]

    def abort(self, key: tuple[str, int], stages: Sequence[str]) -> Command:
        ext = StageBatchHeader(*key).to_ext()
        answer = self.call(RequestCode.STAGE_ABORT, ext, encode_names(stages))
        assert answer is not None
        return answer

    # --- time -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Turn until nothing is left to do, and everything is durable and visible."""
        while self.loop.turn():
            pass
        self.sync()

    def sync(self) -> None:
        self.store.sync_soon()
        assert self.store.wait_durable(self.store.written, 10.0)
        self.store.dispatch()
        self.send_ready()
        while self.turns.waiting:
            self.loop.turn()

    def send_ready(self) -> None:
        """Send the answers that are ready. The broker does so by a timer, and when a mark moves."""
        self.answers.go_on()
        self.staging.answers.send_ready()

    def save(self) -> None:
        """Have stages.json written, if there is something new."""
        changes = self.staging.file.take_changes()
        if changes is None:
            self.sync()
            changes = self.staging.file.take_changes()
        if changes is not None:
            self.staging.file.save(changes)

    def close(self) -> None:
        self.staging.close()
        self.store.close()

    def waiting(self) -> list[str]:
        """Messages that are held back, as `bodies` will give them, sorted."""
        self.store.dispatch()
        return sorted(
            f"{found.properties['REAL_TOPIC']}/{found.properties['REAL_QID']}/{found.body.decode()}"
            for queue in range(LEVELS)
            for found in read_all(self.store, SCHEDULE_TOPIC, queue)
        )

    def bodies(self) -> list[str]:
        """The bodies that consumers find in all queues of both topics, sorted."""
        self.store.dispatch()
        return sorted(
            f"{topic}/{queue}/{message.body.decode()}"
            for topic in TOPICS
            for queue in range(4)
            for message in read_all(self.store, topic, queue)
        )


Row = tuple[str, int, bytes]


def rows(mark: str, count: int, topic: str = "Orders", queues: int = 3) -> list[Row]:
    """Numbered rows round robin over some queues."""
    return [(topic, n % queues, f"{mark}-{n:03d}".encode()) for n in range(count)]


def texts(given: Sequence[Row]) -> list[str]:
    """Rows as `Desk.bodies` gives them."""
    return sorted(f"{topic}/{queue}/{body.decode()}" for topic, queue, body in given)


def runs_of(given: Sequence[Row]) -> list[Run]:
    """Rows side by side for one queue become a run."""
    runs: list[Run] = []
    for topic, queue, body in given:
        values = {"UNIQ_KEY": body.decode(), "TAGS": "T"}
        if body.startswith(b"late"):  # late3-007 by level 3
            values["DELAY"] = body[4:5].decode()
        properties = encode_properties(values).encode()
        items = encode_batch([BatchItem(0, body, properties)])
        if runs and runs[-1][:2] == (topic, queue):
            last = runs.pop()
            runs.append(Run(topic, queue, last.rows + 1, last.body + items))
        else:
            runs.append(Run(topic, queue, 1, items))
    return runs
