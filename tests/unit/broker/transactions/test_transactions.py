"""Transactions around a real store, with time moved by hand: no test waits."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.access.accounts import Rules
from aerobee.access.control import AccessControl
from aerobee.access.errors import AccessDenied
from aerobee.access.files.account_file import parse_account_file
from aerobee.access.needs import BROKER_NEEDS
from aerobee.broker.appending.answers import _LOOK, MAX_DECISIONS, Answers
from aerobee.broker.broker_stats import BrokerStats
from aerobee.broker.routing.role import Role
from aerobee.broker.tables.clients import Heartbeat
from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.broker.tables.offsets import Admission, ConsumerOffsets
from aerobee.broker.transactions import check_back as checks
from aerobee.broker.transactions.transactions import Transactions
from aerobee.config.model import Settings
from aerobee.protocol.bodies.clients import HeartbeatData
from aerobee.protocol.bodies.routes import PERM_READ_WRITE
from aerobee.protocol.bodies.topics import TopicConfig
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.frames.command import Command, encode_success, make_request
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.frames.signature import signed
from aerobee.protocol.message.ids import offset_msg_id
from aerobee.protocol.message.record import Message, StoreMessage, decode_record
from aerobee.protocol.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GROUP,
)
from aerobee.remoting.turns import Job, Turns
from aerobee.store.errors import StoreNotWritable
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import PutResult
from tests.inline_loop import drive
from tests.unit.broker.appending.appending_support import appending
from tests.unit.broker.second_step.second_step_support import no_deletions, second_step
from tests.unit.broker.tables.clients_support import NOW_MS, Endless, Producer, Tables, request
from tests.unit.remoting.conftest import StepClock
from tests.unit.store.support import HOST, ManualClock, bodies, message, read_all, small_settings

GROUP = "PG"
OWNER, STRANGER, SECRET = "orders-owner", "only-others", "twelve-letters"
ACCOUNTS = f"""\
accounts:
- accessKey: {OWNER}
  secretKey: {SECRET}
  topicPerms: [Orders=PUB]
- accessKey: {STRANGER}
  secretKey: {SECRET}
  topicPerms: [others=PUB]
""".encode()
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
TIMEOUT_MS, INTERVAL_MS = 6_000, 60_000


NEVER_MS = 3_600_000


class AtOnce(Endless):
    """Turns that run what is added to its end."""

    def add(self, job: Job) -> None:
        while job():
            pass


class Time:
    """A loop with a clock alone: transactions ask nothing else of it here."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


class Bench:
    """The transactions of one store, and a client of one group."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.values: dict[str, object] = {
            "commit_log_segment_bytes": 1 << 16,
            "flush_disk_type": "ASYNC_FLUSH",
            **settings,
        }
        self.clock = ManualClock(NOW_MS)
        self.refused: Callable[[StoreMessage], bool] = lambda _: False
        self.access: AccessControl | None = None
        self.deleted = no_deletions()
        self.role = Role(Settings.for_tests())
        self.open()

    def open(self) -> None:
        self.settings = small_settings(self.path, **self.values)
        self.store = MessageStore.open(self.settings, clock=self.clock)
        self._really_put = self.store.log.put
        self.store.log.put = self._put  # type: ignore[method-assign]
        tables = Tables(self.path / "config")
        self.topics, self.clients = tables.topics, tables.clients
        self.topics.update(TopicConfig("Orders", 4, 4, PERM_READ_WRITE)).result()
        self.offsets = ConsumerOffsets(
            JsonStateFile(self.path / "config" / "consumerOffset.json"),
            self.store.max_offset,
            Admission(self.topics, tables.groups, offsets=100, start_offsets=0),
        )
        self.time = Time()
        self.stats = BrokerStats()
        self.answers = Answers(
            self.settings, cast("Any", self.time), AtOnce(), self.store, self.stats
        )
        self.transactions = Transactions(
            appending(
                self.store,
                self.settings,
                stats=self.stats,
                clock_ms=self.clock.now_ms,
                appended=self.store.dispatch,
                role=self.role,
            ),
            SimpleNamespace(topics=self.topics, clients=self.clients, offsets=self.offsets),
            loop=cast("Any", self.time),
            turns=AtOnce(),
            answers=self.answers.decisions,
            access=self.access,
            second_step=second_step(self.topics.get, self.deleted),
        )
        self.peer = Producer(1)

    def _put(self, stored: StoreMessage) -> PutResult:
        if self.refused(stored):
            raise StoreNotWritable("the disk is full")
        return self._really_put(stored)

    def close(self) -> None:
        self.transactions.close()
        self.offsets.flush()
        self.store.close()

    def restart(self) -> None:
        self.close()
        self.open()

    def kill(self, name: str) -> None:
        """Go on with the files as they are now."""
        self.store.request_flush()
        image = self.path.with_name(name)
        shutil.copytree(self.path, image)
        self.store.log.put = self._really_put  # type: ignore[method-assign]
        self.store.close()
        self.path = image
        self.open()

    # --- what a producer does

    def join(self, port: int = 1, account: str = "") -> Producer:
        producer = Producer(port)
        data = HeartbeatData(f"c{port}", (GROUP,), ())
        drive(self.clients.heartbeat(Heartbeat(producer.connection, "JAVA", 409, data, account)))
        return producer

    def use_accounts(self) -> None:
        """From now on OWNER may send to Orders, and STRANGER to another topic."""
        accounts = parse_account_file("f.yml", ACCOUNTS).accounts
        self.access = AccessControl(Rules(accounts), BROKER_NEEDS, self._topic_at, self.time.time)
        self.restart()

    def _topic_at(self, log_offset: int) -> str | None:
        record = self.store.reader.record_at(log_offset)
        return None if record is None else decode_record(record).properties.get("REAL_TOPIC")

    def prepare(
        self,
        body: bytes = b"m",
        unique: str = "U",
        late_ms: int = 0,
        queue_id: int = 2,
        **more: str,
    ) -> PutResult:
        """A half message of a producer whose clock is so late."""
        own = {"PGROUP": GROUP, "TRAN_MSG": "true", "WAIT": "true"} | more
        made = message(body, "Orders", queue_id, tags="T", keys="k", unique=unique, more=own)
        made.born_timestamp_ms = self.clock.now_ms() - late_ms
        result = self.transactions.prepare(made)
        self.store.dispatch()
        return result

    def end(
        self, place: PutResult | Command, decision: int, *, oneway: bool = False, **fields: Any
    ) -> Command | None:
        """The answer to END_TRANSACTION for a half message, or for the message of a check."""
        if isinstance(place, Command):
            at, number = place.ext["commitLogOffset"], place.ext["tranStateTableOffset"]
        else:
            at, number = str(place.log_offset), str(place.queue_offset)
        ext: dict[str, Any] = {
            "producerGroup": GROUP,
            "tranStateTableOffset": number,
            "commitLogOffset": at,
            "commitOrRollback": decision,
            "msgId": "U",
        }
        command = request(RequestCode.END_TRANSACTION, ext | fields)
        command.flag = 2 if oneway else 0
        return self.call(command)

    def call(self, command: Command) -> Command | None:
        handler = self.transactions.handlers()[command.code]
        data = drive(handler(self.peer.connection, command))
        return None if data is None else FrameDecoder().feed(data)[0]

    def refusal(self, place: PutResult | Command, decision: int, **fields: Any) -> str:
        with pytest.raises(BadRequest) as raised:
            self.end(place, decision, **fields)
        assert raised.value.code == ResponseCode.SYSTEM_ERROR
        return raised.value.remark

    # --- time, and what is to be seen

    def round(self, after_ms: int = INTERVAL_MS) -> None:
        """Let time go by, then have the checks do what it is time for."""
        self.clock.time_ms += after_ms
        self.time.now += after_ms / 1000
        self.transactions._checks.tick()

    def save_progress(self) -> None:
        for _ in range(2):
            self.transactions._checks.save_progress()
            self.store.sync_soon()
            self.store.wait_durable(self.store.written, 10.0)
            self.transactions._checks.save_progress()

    @property
    def progress(self) -> tuple[int, int]:
        half, op = [
            self.offsets.query(TRANSACTION_GROUP, name, 0) for name in (HALF_TOPIC, OP_HALF_TOPIC)
        ]
        return half, op

    def delivered(self) -> list[bytes]:
        return bodies(self.store, "Orders", 2)

    def ops(self) -> list[tuple[str, int]]:
        """The op messages: whose half message, how decided."""
        return [(one.body.decode(), one.flag) for one in read_all(self.store, OP_HALF_TOPIC)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    yield made
    made.close()


def code(answer: Command | None) -> int:
    assert answer is not None
    return answer.code


# --- forms ------------------------------------------------------------------------------------


def test_a_half_message_waits_in_the_half_queue_with_its_own_place(bench: Bench) -> None:
    place = bench.prepare(TRANSACTION_CHECK_TIMES="9", TRAN_PREPARED_QUEUE_OFFSET="0")
    (half,) = read_all(bench.store, HALF_TOPIC)
    assert half.properties == {
        "TAGS": "T",
        "KEYS": "k",
        "UNIQ_KEY": "U",
        "PGROUP": GROUP,
        "TRAN_MSG": "true",
        "WAIT": "true",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "2",
    }
    assert (half.queue_id, half.sys_flag, half.queue_offset) == (0, 0, place.queue_offset)
    assert bench.delivered() == []


def test_a_commit_delivers_the_message_with_all_its_properties_and_leaves_an_op_message(
    bench: Bench,
) -> None:
    bench.prepare(b"first")
    place = bench.prepare(b"paid")
    assert code(bench.end(place, COMMIT)) == 0
    (final,) = read_all(bench.store, "Orders", 2)
    (_, half) = read_all(bench.store, HALF_TOPIC)
    assert (final.body, final.properties, final.queue_offset) == (b"paid", half.properties, 0)
    assert (final.sys_flag & 0xC, final.prepared_transaction_offset) == (8, place.log_offset)
    (op,) = read_all(bench.store, OP_HALF_TOPIC)
    assert (op.body, op.properties) == (b"1", {"TAGS": "d", "WAIT": "true"})
    assert (op.queue_id, op.sys_flag, op.flag) == (0, 0, COMMIT)
    assert bench.transactions.pending == 1


def test_a_rollback_delivers_nothing_and_leaves_an_op_message(bench: Bench) -> None:
    place = bench.prepare()
    assert code(bench.end(place, ROLLBACK)) == 0
    assert (bench.delivered(), bench.ops(), bench.transactions.pending) == ([], [("0", 12)], 0)


def test_a_producer_that_does_not_know_yet_gets_no_answer(bench: Bench) -> None:
    place = bench.prepare()
    assert bench.end(place, UNKNOWN) is None
    assert (bench.transactions.pending, bench.ops()) == (1, [])


# --- decisions that come again, or wrong ------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_decision_that_comes_again_is_answered_and_changes_nothing(
    bench: Bench, decision: int, restarts: bool
) -> None:
    place = bench.prepare()
    bench.end(place, decision)
    before = bench.delivered(), bench.ops()
    if restarts:
        bench.restart()
    assert code(bench.end(place, decision)) == 0
    assert (bench.delivered(), bench.ops()) == before
    assert bench.transactions.ends.repeated == 1


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("first", "word"), [(COMMIT, "committed"), (ROLLBACK, "rolled back")])
def test_a_decision_cannot_be_changed(bench: Bench, first: int, word: str, restarts: bool) -> None:
    place = bench.prepare()
    bench.end(place, first)
    before = bench.delivered(), bench.ops()
    if restarts:
        bench.restart()
    assert f"was {word} already" in bench.refusal(place, COMMIT + ROLLBACK - first)
    assert (bench.delivered(), bench.ops()) == before


def test_a_decision_names_its_half_message_rightly_or_is_refused(bench: Bench) -> None:
    place = bench.prepare()
    assert "producer group wrong" in bench.refusal(place, COMMIT, producerGroup="Other")
    assert "table offset wrong" in bench.refusal(place, COMMIT, tranStateTableOffset=7)
    for at in (-1, place.log_offset + 1, place.end, 1 << 60):
        text = bench.refusal(place, COMMIT, commitLogOffset=at)
        assert "Find prepared transaction message failed" in text
    assert "must be 8 (commit)" in bench.refusal(place, 4)
    assert "commitOrRollback is missing" in bench.refusal(place, COMMIT, commitOrRollback="")
    plain = bench.store.log.put(message(b"plain", "Orders", 2))
    assert "no half message" in bench.refusal(plain, COMMIT)
    bench.end(place, COMMIT)
    final = bench.store.reader.record_at(place.end)
    assert "no half message" in bench.refusal(place, COMMIT, commitLogOffset=plain.end), final
    assert bench.transactions.ends.refused == 10


def test_a_commit_to_a_topic_that_is_not_there_though_nobody_deleted_it_waits_for_it(
    bench: Bench,
) -> None:
    place = bench.prepare()
    bench.topics.withdraw("Orders").result()
    bench.topics.forget("Orders")
    with pytest.raises(BadRequest) as raised:
        bench.end(place, COMMIT)
    assert raised.value.code == ResponseCode.TOPIC_NOT_EXIST
    bench.topics.update(TopicConfig("Orders", 4, 4, PERM_READ_WRITE)).result()
    assert code(bench.end(place, COMMIT)) == 0
    assert bench.delivered() == [b"m"]


def test_what_the_store_refuses_stays_undecided(bench: Bench) -> None:
    place = bench.prepare()
    bench.refused = lambda _: True
    for decision in (COMMIT, ROLLBACK):
        with pytest.raises(StoreNotWritable):
            bench.end(place, decision)
    assert bench.transactions.pending == 1
    bench.refused = lambda _: False
    assert code(bench.end(place, COMMIT)) == 0
    assert bench.delivered() == [b"m"]


def test_an_op_message_that_cannot_be_put_comes_later_and_the_commit_is_not_repeated(
    bench: Bench,
) -> None:
    place = bench.prepare()
    bench.refused = lambda stored: stored.topic == OP_HALF_TOPIC
    assert code(bench.end(place, COMMIT)) == 0
    assert code(bench.end(place, COMMIT)) == 0
    bench.round(1)
    assert (bench.delivered(), bench.ops()) == ([b"m"], [])
    bench.refused = lambda _: False
    bench.round(1)
    bench.store.dispatch()
    assert (bench.delivered(), bench.ops()) == ([b"m"], [("0", COMMIT)])


def test_too_many_undecided_ones_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", pending_transactions=2)
    first = bench.prepare()
    bench.prepare()
    with pytest.raises(BadRequest) as raised:
        bench.prepare()
    assert raised.value.code == ResponseCode.SYSTEM_BUSY
    assert "limits.pending_transactions" in raised.value.remark
    bench.end(first, COMMIT)
    bench.prepare()
    bench.close()


# --- SYNC_FLUSH -------------------------------------------------------------------------------


async def test_answers_that_one_sync_covers_leave_a_slice_a_turn(tmp_path: Path) -> None:
    """The most answers that may wait are here, and the store's mark lets all of them go."""
    bench = Bench(tmp_path / "store", flush_disk_type="SYNC_FLUSH")
    loop, turns = asyncio.get_running_loop(), Turns(StepClock())
    answers = Answers(bench.settings, loop, turns, bench.store, bench.stats).decisions
    for _ in range(MAX_DECISIONS):
        command = make_request(37)
        answers.when_kept(bench.peer.connection, command, 0, encode_success(command))
    assert answers.full
    answers.go_on()
    most, before = 0, len(answers)
    async with asyncio.timeout(20):
        while len(answers):
            await asyncio.sleep(0)
            most, before = max(most, before - len(answers)), len(answers)
    assert most <= 24 * _LOOK
    bench.close()


def test_an_answer_waits_for_the_sync(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", flush_disk_type="SYNC_FLUSH")
    place = bench.prepare()
    assert bench.end(place, COMMIT) is None
    answers = bench.answers.decisions
    assert len(answers) == 1
    bench.store.request_flush()
    assert bench.store.wait_durable(bench.store.written, 10.0)
    answers.go_on()
    assert [one.code for one in bench.peer.asked()] == [0]
    bench.store.dispatch()
    assert bench.delivered() == [b"m"]
    # A oneway request has no answer that could wait.
    second = bench.prepare()
    bench.end(second, COMMIT, oneway=True)
    assert len(answers) == 0
    bench.close()


@pytest.mark.parametrize(
    ("broken", "wait_s", "wanted"),
    [
        ("EIO", 0.0, ResponseCode.SERVICE_NOT_AVAILABLE),
        (None, 3600.0, ResponseCode.FLUSH_DISK_TIMEOUT),
    ],
)
def test_an_answer_whose_sync_does_not_come(
    tmp_path: Path, broken: str | None, wait_s: float, wanted: int
) -> None:
    bench = Bench(tmp_path / "store", flush_disk_type="SYNC_FLUSH", flush_interval_ms=NEVER_MS)
    assert bench.end(bench.prepare(), COMMIT) is None
    assert bench.store.durable < bench.store.written
    bench.answers.go_on()
    assert bench.peer.asked() == []
    bench.time.now += wait_s
    if broken is None:
        bench.answers.go_on()
    else:
        bench.answers.fail(broken)
    (answer,) = bench.peer.asked()
    assert (answer.code, answer.ext) == (wanted, {})
    bench.close()


# --- checks -----------------------------------------------------------------------------------


def test_an_undecided_message_is_stored_again_and_its_producer_is_asked(bench: Bench) -> None:
    producer = bench.join()
    bench.prepare(b"m")
    bench.round()
    (check,) = producer.asked()
    (_, copy) = read_all(bench.store, HALF_TOPIC)
    assert (check.code, check.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    assert check.ext == {
        "tranStateTableOffset": "1",
        "commitLogOffset": str(copy.log_offset),
        "msgId": "U",
        "transactionId": "U",
        "offsetMsgId": offset_msg_id(HOST, copy.log_offset),
    }
    shown = decode_record(check.body)
    assert (shown.topic, shown.queue_id, shown.body) == ("Orders", 2, b"m")
    assert shown.properties == copy.properties
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert code(bench.end(check, COMMIT, fromTransactionCheck="true")) == 0
    assert bench.delivered() == [b"m"]


def test_a_young_message_is_not_asked_about_and_one_with_its_own_time_then(bench: Bench) -> None:
    producer = bench.join()
    bench.prepare(unique="patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    bench.round(INTERVAL_MS - TIMEOUT_MS + 1)
    bench.prepare(unique="young")
    bench.prepare(unique="hasty", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    bench.round(TIMEOUT_MS - 1)
    assert [one.ext["msgId"] for one in producer.asked()] == ["hasty"]
    bench.round()
    assert [one.ext["msgId"] for one in producer.asked()] == ["patient", "young", "hasty"]


def test_a_message_from_the_future_or_with_rubbish_for_a_time_is_asked_about(bench: Bench) -> None:
    producer = bench.join()
    bench.clock.time_ms += 86_400_000
    bench.prepare(unique="future", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
    bench.clock.time_ms -= 86_400_000
    bench.prepare(unique="rubbish", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    bench.restart()
    producer = bench.join()
    bench.round()
    assert "rubbish" in [one.ext["msgId"] for one in producer.asked()]


def test_producers_of_the_group_are_asked_in_turns_and_a_lost_one_not(bench: Bench) -> None:
    producers = [bench.join(port) for port in (1, 2, 3)]
    for number in range(6):
        bench.prepare(unique=f"U{number}")
    producers[2].closed = True
    bench.round()
    counts = [len(one.asked()) for one in producers]
    assert (sum(counts), counts[2]) == (6, 0)
    assert min(counts[:2]) >= 2


def test_who_has_no_room_is_asked_later_and_the_check_is_not_counted(bench: Bench) -> None:
    producer = bench.join()
    producer.full = True
    bench.prepare()
    bench.round()
    assert (producer.asked(), len(read_all(bench.store, HALF_TOPIC))) == ([], 1)
    producer.full = False
    bench.round(250)
    (check,) = producer.asked()
    assert decode_record(check.body).properties["TRANSACTION_CHECK_TIMES"] == "1"
    bench.round(250)
    assert producer.asked() == []


def test_without_a_producer_rounds_count_and_the_message_is_put_aside(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", transaction_check_max=3)
    bench.prepare(b"m")
    for checks_made in (1, 2, 3):
        bench.round()
        copies = read_all(bench.store, HALF_TOPIC)
        assert copies[-1].properties["TRANSACTION_CHECK_TIMES"] == str(checks_made)
    bench.round()
    (aside,) = read_all(bench.store, CHECK_MAX_TIME_TOPIC)
    assert (aside.body, aside.properties["REAL_TOPIC"]) == (b"m", "Orders")
    assert (bench.transactions.pending, bench.delivered()) == (0, [])
    assert bench.topics.get(CHECK_MAX_TIME_TOPIC) is not None
    bench.save_progress()
    assert bench.progress == (4, 1)
    bench.round()
    assert len(read_all(bench.store, CHECK_MAX_TIME_TOPIC)) == 1
    assert bench.transactions.checks.put_aside == 1
    assert bench.transactions.checks.no_producer == 3
    bench.close()


def test_a_message_older_than_messages_are_kept_is_put_aside(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", retention_hours=1)
    bench.prepare()
    bench.clock.time_ms += 3_600_001
    bench.round()
    assert len(read_all(bench.store, CHECK_MAX_TIME_TOPIC)) == 1
    bench.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_producer_whose_clock_is_days_behind_is_asked_in_its_time(
    bench: Bench, restarts: bool
) -> None:
    producer = bench.join()
    bench.prepare(late_ms=30 * 86_400_000, CHECK_IMMUNITY_TIME_IN_SECONDS="100000")
    if restarts:
        bench.restart()
        producer = bench.join()
    bench.round()
    assert producer.asked() == []  # it may still be deciding
    bench.clock.time_ms += 100_000_000
    bench.round()
    assert len(producer.asked()) == 1
    assert bench.transactions.checks.put_aside == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_late_decision_about_the_first_message_decides_its_copies(
    bench: Bench, restarts: bool
) -> None:
    producer = bench.join()
    place = bench.prepare()
    bench.round()
    bench.round()
    first, second = producer.asked()
    if restarts:
        bench.restart()
        producer = bench.join()
    assert code(bench.end(place, COMMIT)) == 0
    assert code(bench.end(second, COMMIT)) == 0
    assert code(bench.end(first, COMMIT)) == 0
    assert "already" in bench.refusal(second, ROLLBACK)
    assert (bench.delivered(), bench.transactions.pending) == ([b"m"], 0)
    bench.round()
    assert producer.asked() == []


def test_a_check_that_is_answered_late_twice_or_by_rubbish(bench: Bench) -> None:
    producer = bench.join()
    bench.prepare(unique="one")
    bench.prepare(unique="two")
    bench.round()
    one, two = producer.asked()
    bench.round()
    assert len(producer.asked()) == 2
    assert code(bench.end(one, ROLLBACK)) == 0
    assert code(bench.end(one, ROLLBACK)) == 0
    assert bench.refusal(two, COMMIT, tranStateTableOffset=one.ext["tranStateTableOffset"])
    assert bench.refusal(two, COMMIT, commitLogOffset="x")
    assert bench.transactions.pending == 1
    assert code(bench.end(two, COMMIT)) == 0
    assert len(bench.delivered()) == 1


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("order", ["first, last", "last, first", "middle, last, first"])
def test_one_that_was_put_aside_can_still_be_committed_once(
    tmp_path: Path, order: str, restarts: bool
) -> None:
    """Whichever of its copies a decision names. The crash model found a second delivery where a
    later decision named the copy that was put aside."""
    bench = Bench(tmp_path / "store", transaction_check_max=2)
    producer = bench.join()
    named: dict[str, PutResult | Command] = {"first": bench.prepare()}
    for _ in range(3):
        bench.round()
    named["middle"], named["last"] = producer.asked()
    assert bench.transactions.pending == 0
    bench.restart()
    for name in order.split(", "):
        assert code(bench.end(named[name], COMMIT)) == 0
        if restarts:
            bench.restart()
    for place in named.values():
        assert code(bench.end(place, COMMIT)) == 0
        assert "was committed already" in bench.refusal(place, ROLLBACK)
    assert bench.delivered() == [b"m"]
    bench.close()


def test_the_round_goes_on_when_the_store_takes_messages_again(bench: Bench) -> None:
    producer = bench.join()
    bench.prepare(unique="a")
    bench.prepare(unique="b")
    bench.refused = lambda stored: stored.topic == HALF_TOPIC
    bench.round()
    assert producer.asked() == []
    bench.refused = lambda _: False
    bench.round()
    assert [one.ext["msgId"] for one in producer.asked()] == ["a", "b"]


def test_ten_thousand_undecided_ones_are_all_asked_about_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", commit_log_segment_bytes=1 << 24)
    producer = bench.join()
    for number in range(10_000):
        bench.prepare(unique=f"U{number}")
    bench.round()
    asked = producer.asked()
    assert [one.ext["msgId"] for one in asked] == [f"U{number}" for number in range(10_000)]
    bench.round(1_000)
    assert producer.asked() == []
    for one in asked:
        bench.end(one, ROLLBACK)
    assert bench.transactions.pending == 0
    bench.save_progress()
    assert bench.progress == (20_000, 10_000)
    bench.close()


# --- accounts ---------------------------------------------------------------------------------


def test_only_who_may_send_to_the_topic_is_asked(bench: Bench) -> None:
    """A question carries the message, and any client may say that it is of the group."""
    bench.use_accounts()
    strangers = [bench.join(1, STRANGER), bench.join(2)]
    bench.prepare()
    bench.round()
    assert (bench.transactions.checks.no_producer, bench.transactions.checks.asked) == (1, 0)
    owner = bench.join(3, OWNER)
    for _ in range(3):
        bench.round()
    assert len(owner.asked()) == 3
    # One that has no room is waited for; the others do not stand in for it.
    owner.full = True
    bench.round()
    assert [one.asked() for one in strangers] == [[], []]
    assert bench.transactions.checks.no_producer == 1


def test_who_may_decide_is_looked_at_when_the_message_can_be_read(bench: Bench) -> None:
    """While a transient pool has it, nobody knows whose topic it is for."""
    bench.use_accounts()
    place = bench.prepare()
    requests = bench.transactions._requests

    def end(by: str) -> Command | None:
        ext = {
            "producerGroup": GROUP,
            "tranStateTableOffset": str(place.queue_offset),
            "commitLogOffset": str(place.log_offset),
            "commitOrRollback": str(COMMIT),
        }
        kept_back = iter((True, False))
        requests._is_kept_back = lambda _: next(kept_back)  # type: ignore[method-assign]
        return bench.call(request(RequestCode.END_TRANSACTION, signed(ext, b"", by, SECRET)))

    with pytest.raises(AccessDenied, match="topic:Orders"):
        end(STRANGER)
    assert (bench.delivered(), bench.transactions.ends.refused) == ([], 1)
    assert code(end(OWNER)) == 0
    assert bench.delivered() == [b"m"]


# --- resuming ---------------------------------------------------------------------------------


def resume(bench: Bench, log_offset: int) -> Command | None:
    ext = {"msgId": offset_msg_id(HOST, log_offset)}
    return bench.call(request(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext))


def test_one_that_was_put_aside_is_checked_again_and_its_decision_counts_once(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "store", transaction_check_max=1)
    bench.prepare()
    bench.round()
    bench.round()
    (aside,) = read_all(bench.store, CHECK_MAX_TIME_TOPIC)
    for _ in range(2):  # twice is one transaction still
        assert code(resume(bench, aside.log_offset)) == 0
    assert bench.transactions.pending == 1
    bench.restart()
    producer = bench.join()
    bench.round()
    (check,) = producer.asked()
    bench.end(check, COMMIT)
    with pytest.raises(BadRequest, match="is decided"):
        resume(bench, aside.log_offset)
    bench.round()
    assert (bench.delivered(), producer.asked()) == ([b"m"], [])
    bench.close()


def test_what_is_decided_or_no_half_message_is_not_resumed(bench: Bench) -> None:
    place = bench.prepare()
    bench.end(place, ROLLBACK)
    with pytest.raises(BadRequest, match="is decided"):
        resume(bench, place.log_offset)
    plain = bench.store.log.put(message(b"plain", "Orders", 2))
    with pytest.raises(BadRequest, match="no half message"):
        resume(bench, plain.log_offset)
    with pytest.raises(BadRequest, match="there is no message"):
        resume(bench, plain.end)
    with pytest.raises(BadRequest, match="32 or 56"):
        bench.call(request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": "x"}))
    with pytest.raises(BadRequest, match="32 or 56"):
        bench.call(request(RequestCode.RESUME_CHECK_HALF_MESSAGE))


# --- progress, restarts, kills ----------------------------------------------------------------


def test_progress_stops_at_the_first_undecided_one_and_is_found_again(bench: Bench) -> None:
    places = [bench.prepare(unique=f"U{number}") for number in range(5)]
    for number in (0, 1, 3):
        bench.end(places[number], COMMIT)
    bench.save_progress()
    assert bench.progress == (2, 2)
    bench.restart()
    assert bench.transactions.pending == 2
    producer = bench.join()
    bench.round()
    assert [one.ext["msgId"] for one in producer.asked()] == ["U2", "U4"]
    bench.save_progress()
    assert bench.progress == (5, 3)


def test_progress_never_says_more_than_what_is_durable(bench: Bench) -> None:
    place = bench.prepare()
    bench.end(place, COMMIT)
    assert bench.transactions._checks.save_progress() == bench.store.written
    assert bench.store.durable < bench.store.written
    assert bench.progress == (-1, -1)
    bench.store.sync_soon()
    bench.store.wait_durable(bench.store.written, 10.0)
    bench.transactions._checks.save_progress()
    assert bench.progress == (1, 1)


def test_progress_that_somebody_else_moved_is_put_right(bench: Bench) -> None:
    for _ in range(3):
        bench.prepare()
    bench.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 3)
    bench.store.sync_soon()
    bench.store.wait_durable(bench.store.written, 10.0)
    bench.save_progress()
    assert bench.progress == (0, 0)


def test_a_kill_at_any_place_of_the_log_keeps_every_transaction_once(
    bench: Bench, tmp_path: Path
) -> None:
    producer = bench.join()
    places = [bench.prepare(b"%d" % number, f"U{number}") for number in range(4)]
    bench.end(places[0], COMMIT)
    bench.round()
    checks_asked = producer.asked()
    bench.end(checks_asked[0], COMMIT)
    bench.kill("image")
    assert bench.transactions.pending == 2
    producer = bench.join()
    bench.round()
    assert [one.ext["msgId"] for one in producer.asked()] == ["U2", "U3"]
    assert bench.delivered() == [b"0", b"1"]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_decision_about_a_copy_decides_what_the_copy_replaced_over_a_kill(
    bench: Bench, decision: int
) -> None:
    """Progress still stands before the first half message."""
    producer = bench.join()
    bench.prepare()
    bench.round()
    bench.round()
    assert code(bench.end(producer.asked()[-1], decision)) == 0
    for number in range(40):
        bench.end(bench.prepare(b"later", f"V{number}"), COMMIT)
    bench.kill("image")
    assert bench.transactions.pending == 0
    producer = bench.join()
    bench.round()
    assert producer.asked() == []
    assert bench.delivered().count(b"m") == (decision == COMMIT)


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_decision_about_a_copy_is_remembered_by_its_first_message_over_a_restart(
    bench: Bench, decision: int
) -> None:
    producer = bench.join()
    place = bench.prepare()
    bench.round()
    assert code(bench.end(producer.asked()[0], decision)) == 0
    bench.save_progress()
    bench.restart()
    assert code(bench.end(place, decision)) == 0
    assert "already" in bench.refusal(place, ROLLBACK if decision == COMMIT else COMMIT)
    assert bench.delivered().count(b"m") == (decision == COMMIT)


def test_one_that_was_put_aside_is_committed_by_its_first_message_over_a_restart(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "store", transaction_check_max=1)
    bench.join()
    place = bench.prepare()
    bench.round()
    bench.round()
    assert bench.transactions.pending == 0
    bench.save_progress()
    bench.restart()
    assert code(bench.end(place, COMMIT)) == 0
    bench.restart()
    assert code(bench.end(place, COMMIT)) == 0
    assert bench.delivered() == [b"m"]
    bench.close()


def test_one_that_is_checked_anew_is_undecided_over_a_kill(tmp_path: Path) -> None:
    """Though an op message says that it was put aside."""
    bench = Bench(tmp_path / "store", transaction_check_max=1)
    bench.join()
    bench.prepare()
    bench.round()
    bench.round()
    (aside,) = read_all(bench.store, CHECK_MAX_TIME_TOPIC)
    assert code(resume(bench, aside.log_offset)) == 0
    bench.kill("image")
    assert bench.transactions.pending == 1
    producer = bench.join()
    bench.round()
    assert code(bench.end(producer.asked()[0], COMMIT)) == 0
    assert bench.delivered() == [b"m"]
    bench.close()


def test_a_commit_whose_op_message_a_kill_took_is_not_delivered_again(
    bench: Bench, tmp_path: Path
) -> None:
    place = bench.prepare()
    other = bench.prepare(b"other", "V")
    bench.refused = lambda stored: stored.topic == OP_HALF_TOPIC
    bench.end(place, COMMIT)
    bench.refused = lambda _: False
    bench.kill("image")
    producer = bench.join()
    bench.round()
    assert [one.ext["msgId"] for one in producer.asked()] == ["V"]
    assert code(bench.end(place, COMMIT)) == 0
    assert bench.ops() == [("0", COMMIT)]
    assert code(bench.end(other, COMMIT)) == 0
    assert bench.delivered() == [b"m", b"other"]


def test_progress_waits_for_an_op_message_that_is_owed(bench: Bench) -> None:
    """Found by the crash model: the progress went past a decided half message without one. Those
    of later ones are not passed either, or they would be looked at as undecided ones."""
    places = [bench.prepare(unique=f"U{number}") for number in range(3)]
    bench.refused = lambda stored: stored.topic == OP_HALF_TOPIC
    bench.end(places[0], COMMIT)
    bench.kill("image")
    bench.refused = lambda stored: stored.topic == OP_HALF_TOPIC and stored.body == b"0"
    bench.end(places[1], COMMIT)
    bench.end(places[2], ROLLBACK)
    assert bench.transactions.pending == 0
    bench.round(1)
    bench.save_progress()
    assert bench.progress == (-1, -1)
    bench.refused = lambda _: False
    bench.save_progress()
    assert bench.progress == (3, 3)
    bench.restart()
    assert bench.transactions.pending == 0
    assert bench.ops() == [("1", COMMIT), ("2", ROLLBACK), ("0", COMMIT)]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_decision_of_whose_op_messages_a_kill_left_the_first_holds(
    bench: Bench, decision: int
) -> None:
    """It names the first half message while a copy waits: two op messages."""
    bench.join()
    place = bench.prepare()
    bench.round()
    op_messages: list[StoreMessage] = []

    def is_second(stored: StoreMessage) -> bool:
        op_messages.extend([stored] if stored.topic == OP_HALF_TOPIC else [])
        return len(op_messages) > 1

    bench.refused = is_second
    bench.end(place, decision)
    bench.refused = lambda _: False
    bench.kill("image")
    assert bench.transactions.pending == 0
    producer = bench.join()
    bench.round()
    assert producer.asked() == []
    assert code(bench.end(place, decision)) == 0
    assert bench.delivered().count(b"m") == (decision == COMMIT)


def test_one_whose_op_message_a_kill_took_is_put_aside_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", transaction_check_max=1)
    bench.prepare()
    bench.round()
    bench.refused = lambda stored: stored.topic == OP_HALF_TOPIC
    bench.round()
    bench.refused = lambda _: False
    bench.kill("image")
    assert bench.transactions.pending == 0
    bench.round()
    bench.store.dispatch()
    (aside,) = read_all(bench.store, CHECK_MAX_TIME_TOPIC)
    assert bench.ops() == [("1", 4)]
    # One that is checked anew is no such one.
    assert code(resume(bench, aside.log_offset)) == 0
    bench.kill("again")
    assert bench.transactions.pending == 1
    bench.close()


def test_decisions_behind_one_that_is_missing_are_not_remembered_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MOST_OPS", 10)
    bench.prepare(unique="patient", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    for number in range(12):
        bench.end(bench.prepare(unique=f"U{number}"), COMMIT)
    bench.round(1)
    copy = read_all(bench.store, HALF_TOPIC)[-1]
    assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert "TRANSACTION_CHECK_TIMES" not in copy.properties
    bench.save_progress()
    assert bench.progress == (13, 12)
    producer = bench.join()
    bench.round(3_599_000 - 1)
    assert producer.asked() == []
    bench.round()
    assert [one.ext["msgId"] for one in producer.asked()] == ["patient"]


def test_a_damaged_half_message_is_passed_over_and_counted(bench: Bench) -> None:
    bench.store.log.put(message(b"x", HALF_TOPIC, 0, more={"PGROUP": GROUP}))
    bench.store.dispatch()
    bench.prepare(unique="sound")
    bench.restart()
    assert bench.transactions.pending == 1
    producer = bench.join()
    bench.round()
    assert [one.ext["msgId"] for one in producer.asked()] == ["sound"]


# --- what a Java broker leaves ----------------------------------------------------------------


def java_copy(bench: Bench, of: Message, checks_made: int) -> PutResult:
    """Store a half message again as RocketMQ does: nothing in the copy names the first message."""
    properties = dict(of.properties) | {"TRANSACTION_CHECK_TIMES": str(checks_made)}
    made = message(of.body, HALF_TOPIC, 0, more=properties)
    made.born_timestamp_ms = of.born_timestamp_ms
    result = bench.store.log.put(made)
    bench.store.dispatch()
    return result


@pytest.mark.parametrize("progress_was_saved", [False, True])
def test_a_copy_of_java_is_found_and_decided_by_its_first_message(
    bench: Bench, progress_was_saved: bool
) -> None:
    place = bench.prepare()
    (first,) = read_all(bench.store, HALF_TOPIC)
    copy = java_copy(bench, first, 1)
    if progress_was_saved:
        bench.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 1)
    bench.transactions._checks._closed = True
    bench.transactions._checks.save_progress = lambda: None  # type: ignore[method-assign]
    bench.restart()
    assert bench.transactions.pending == 1
    producer = bench.join()
    assert code(bench.end(place, COMMIT)) == 0
    assert code(bench.end(copy, COMMIT)) == 0
    bench.round()
    assert (bench.delivered(), producer.asked()) == ([b"m"], [])


def test_an_op_message_of_java_says_that_and_not_how(bench: Bench) -> None:
    places = [bench.prepare(unique=f"U{number}") for number in range(4)]
    for body in (b"0", b"1,2", b"rubbish"):
        op = message(body, OP_HALF_TOPIC, 0, tags="d", more={"WAIT": "true"})
        bench.store.log.put(op)
    bench.store.dispatch()
    bench.restart()
    assert bench.transactions.pending == 1
    for place in places[:3]:
        assert code(bench.end(place, COMMIT)) == 0
        assert code(bench.end(place, ROLLBACK)) == 0
    assert bench.delivered() == []
    assert code(bench.end(places[3], COMMIT)) == 0
    bench.save_progress()
    assert bench.delivered() == [b"m"]


def test_one_of_which_nothing_is_known_any_more_is_refused(bench: Bench) -> None:
    place = bench.prepare()
    bench.offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 1)
    bench.transactions._checks.save_progress = lambda: None  # type: ignore[method-assign]
    bench.restart()
    assert "not remembered; nothing was delivered" in bench.refusal(place, COMMIT)
    assert bench.delivered() == []


# --- on a slave, and after it ---------------------------------------------------------------


def test_a_slave_asks_nobody_and_a_master_after_it_knows_what_is_undecided(bench: Bench) -> None:
    first, second = bench.prepare(b"1", "U1"), bench.prepare(b"2", "U2")
    bench.role.become(slave=True)
    bench.restart()
    producer = bench.join()
    written = bench.store.written
    bench.round()
    bench.round()
    assert (bench.transactions.pending, producer.asked(), bench.store.written) == (0, [], written)
    bench.role.become(slave=False)
    bench.transactions.lead(anew=True)
    assert bench.transactions.pending == 2
    assert bench.end(first, COMMIT) is not None
    assert bench.delivered() == [b"1"]
    bench.role.become(slave=True)
    bench.transactions.follow()
    assert bench.transactions.pending == 0
    bench.role.become(slave=False)
    bench.restart()
    assert bench.transactions.pending == 1
    assert bench.end(second, COMMIT) is not None
    assert bench.delivered() == [b"1", b"2"]


async def test_a_slave_saves_no_progress_at_its_end(bench: Bench) -> None:
    place = bench.prepare(b"1", "U1")
    bench.end(place, COMMIT)
    bench.role.become(slave=True)
    bench.transactions.follow()
    bench.transactions.close()
    await bench.transactions.save_progress()
    assert bench.progress == (-1, -1)
