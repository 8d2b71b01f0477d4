"""Hostile requests against everything behind the socket, and hostile bytes against the log's parser
(docs/reliability.md R12).

`target.py` has the oracle, `grammar.py` the inputs, `runs.py` a command for more of them by hand.
The corpus goes first in each run. A failing input is printed in base64 with the run's seed; it goes
into the corpus with what mends it.
"""

from __future__ import annotations

import errno
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.broker.requests.clients import replies
from aerobee.broker.requests.clients import running_consumers as consumers
from aerobee.protocol.codes import PROTOCOL_VERSION, RequestCode
from aerobee.protocol.errors import CorruptRecord
from aerobee.protocol.frames.command import Command, encode_response, encode_success
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.message.record_check import (
    BLANK,
    CHECK_BODY,
    CHECK_NOTHING,
    MOST_RECORDS,
    check_record,
    scan_records,
)
from aerobee.remoting.connections.connection import Connection
from aerobee.testing import RunningBroker
from tests import campaign
from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.crash.running.link import SEND, Link, send_fields
from tests.fuzz.grammar import Grammar
from tests.fuzz.runs import PORTS, Result, corpus, run
from tests.fuzz.seeds import ACCOUNT_SEEDS, BROKER_SEEDS, NAME_SERVER_SEEDS
from tests.fuzz.target import LIMITS, Judge, Target
from tests.tools import need
from tests.unit.store.support import message

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests" / "golden" / "store" / "commitlog" / "00000000000000000000"
_SOCKET_S = 10.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A store in memory: saves of tables would be most of the time."""
    with memory_folder() as made:
        yield made


def _report(result: Result) -> str:
    shown = "\n".join(result.wrong)
    return f"{len(result.wrong)} of {result.inputs} inputs are answered wrongly:\n{shown}"


async def test_each_handled_code_has_a_seed(folder: Path) -> None:
    async with Target(folder) as target:
        # Requests about accounts are refused here, and served in test_accounts.py.
        seeded = {int(one.code) for one in BROKER_SEEDS + ACCOUNT_SEEDS}
        assert target.codes["broker"] == seeded
        assert target.codes["name server"] == {int(one.code) for one in NAME_SERVER_SEEDS}


async def test_each_seed_is_a_request_that_is_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what is bent would be refused for another reason first."""
    # The seeds' consumer answers nothing when it is asked.
    for name in ("PASS_ON_S", "STATUS_S"):
        monkeypatch.setattr(consumers, name, 0.05)
    monkeypatch.setattr(replies, "PUSH_S", 0.05)
    refused: list[str] = []
    async with Target(folder) as target:
        for port, seeds in (("broker", BROKER_SEEDS), ("name server", NAME_SERVER_SEEDS)):
            for place, one in enumerate(seeds):
                command = Command(
                    code=one.code,
                    ext=one.ext,
                    body=one.body,
                    opaque=place,
                    version=PROTOCOL_VERSION,
                )
                heard = target.connect(port, command.encode())
                await target.feed(heard, (len(heard.data),))
                heard.wanted[place] = 1
                await target.settle([heard])
                [answer] = [each for each in heard.answers if each.is_response]
                if one.code == RequestCode.VIEW_BROKER_STATS_DATA:
                    continue  # nothing has been sampled yet
                if one.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
                    assert "another broker's" in (answer.remark or "")  # ports are free ones here
                    continue
                if one.code in (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
                    assert "no answer" in (answer.remark or "")
                    continue
                if answer.code in (1, 3, 13):
                    refused.append(f"{port} {one.code}: {answer.code} {answer.remark}")
    assert refused == []


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_hostile_requests_are_answered_or_refused(
    folder: Path, seed: int, flush: str
) -> None:
    count = campaign.size("hostile requests") // 2
    async with Target(folder, flush_disk_type=flush) as target:
        result = await run(Judge(target), seed, count)
    print(f"seed {seed}, {flush}: {result.inputs} inputs, answers {dict(result.answers)}")
    campaign.note(
        "hostile requests",
        result.inputs,
        wrong=len(result.wrong),
        answers=result.answered,
        connections_closed_for_their_bytes=result.closed,
    )
    assert result.inputs > len(corpus())
    assert result.closed < result.inputs
    assert not result.wrong, _report(result)


def _raises(_connection: Connection, command: Command) -> bytes:
    return str(int(command.ext.get("offset", "0"))).encode() if not command.body else b""


def _answers_twice(connection: Connection, command: Command) -> bytes:
    connection.write(encode_success(command))
    return encode_success(command)


def _forgets(_connection: Connection, _command: Command) -> None:
    """Acts as a handler that answers later, and then does not."""


def _shows_its_path(connection: Connection, command: Command) -> bytes:
    del connection
    return encode_response(command, 1, f'File "{__file__}", line 1')


class OtherEnd(FrameDecoder):
    """Forgets a byte that comes alone."""

    def feed(self, data: bytes | bytearray | memoryview) -> list[Command]:
        return super().feed(data[:-1] if len(data) % 97 == 96 else data)


HANDLERS: dict[str, Callable[[Connection, Command], bytes | None]] = {
    "a handler raises": _raises,
    "a handler answers twice": _answers_twice,
    "a handler shows a path": _shows_its_path,
    "a handler forgets": _forgets,
}


def _storing(target: Target) -> Callable[[Connection, Command], bytes]:
    """A handler that stores, and says that it refuses."""

    def handle(_connection: Connection, command: Command) -> bytes:
        target.store.log.put(message())
        return encode_response(command, 1, "no")

    return handle


@pytest.mark.parametrize(
    "control", [*HANDLERS, "a decoder loses a byte", "what is refused is stored"]
)
async def test_a_planted_fault_is_caught(folder: Path, seed: int, control: str) -> None:
    async with Target(folder) as target:
        judge = Judge(target)
        if control in HANDLERS:
            target.break_router(RequestCode.VIEW_MESSAGE_BY_ID, HANDLERS[control])
            target.settle_s = 0.2
        elif control == "what is refused is stored":
            target.break_router(RequestCode.VIEW_MESSAGE_BY_ID, _storing(target))
        else:
            judge = Judge(target, OtherEnd)
        result = await run(judge, seed, len(corpus()) + 400, stop_at=1)
    campaign.note_control("hostile requests", control, bool(result.wrong), 1)
    assert result.wrong, f"seed {seed}: {control}, and nothing was seen in {result.inputs} inputs"


# --- the same over sockets ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with aerobee.testing.broker(**LIMITS) as running:
        yield running


def _say(port: int, data: bytes) -> None:
    """Send the bytes, end the sending, read to the end; resets are the other side's right."""
    with socket.create_connection(("127.0.0.1", port), _SOCKET_S) as peer:
        try:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65_536):
                pass
        except OSError as error:
            # ENOTCONN: it was reset before the end of the sending.
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise


def test_hostile_requests_on_sockets_leave_a_good_client_served(
    broker: RunningBroker, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    ports = {
        "broker": int(broker.broker.rpartition(":")[2]),
        "vip": int(broker.vip.rpartition(":")[2]),
        "name server": int(broker.name_server.rpartition(":")[2]),
    }
    rng = random.Random(f"sockets {seed}")
    print(f"seed {seed}")
    count = campaign.size("hostile sockets")
    with Link(ports["broker"]) as good:
        for number in range(count):
            port = rng.choice(list(PORTS))
            _say(ports[port], Grammar(rng, PORTS[port]).next())
            if number % 10 == 0:
                answer = good.call(SEND, send_fields("Good", 0, {"KEYS": "k"}), b"%d" % number)
                assert (answer.code, answer.ext["queueOffset"]) == (0, str(number // 10))
        records, ends = good.read_queue("Good", 0)
    assert [one.body for one in records] == [b"%d" % n for n in range(0, count, 10)]
    assert ends == (0, len(records))
    assert [one.getMessage() for one in caplog.records if one.exc_info] == []
    campaign.note("hostile sockets", count, sends_of_a_good_client=len(records))


# --- the log's parser -----------------------------------------------------------------------------


def one_by_one(data: bytes, check: Callable[..., object] = check_record) -> list[tuple[int, int]]:
    """Place and size of each sound record from the beginning on, by the careful way."""
    found: list[tuple[int, int]] = []
    position = 0
    while len(found) < MOST_RECORDS:
        try:
            head = check(data, position, position, len(data), CHECK_BODY)
        except CorruptRecord:
            return found
        if head.kind == BLANK:  # type: ignore[attr-defined]
            return found
        size: int = head.size  # type: ignore[attr-defined]
        found.append((position, size))
        position += size
    return found


def _records() -> bytes:
    data = LOG.read_bytes()
    last_at, last_bytes = one_by_one(data)[-1]
    return data[: last_at + last_bytes] + bytes(200)


def test_hostile_records_are_read_alike_by_both_ways(seed: int) -> None:
    """The scanner of many records and the check of one take the same for sound, and raise only the
    errors that say that a record is unsound."""
    rng = random.Random(f"records {seed}")
    whole = _records()
    grammar = Grammar(rng, BROKER_SEEDS)
    count, sound = campaign.size("hostile records"), 0
    for number in range(count):
        data = grammar.bent(whole, 4)
        fast = [(one[0], one[1]) for one in scan_records(data, 0, 0, len(data), CHECK_BODY)]
        assert fast == one_by_one(data), f"seed {seed}, input {number}: {data.hex()}"
        assert sum(size for _, size in fast) <= len(data)
        sound += len(fast)
    assert 0 < sound < len(one_by_one(whole)) * count
    campaign.note("hostile records", count, sound_ones_before_the_first_bad=sound)


def test_a_parser_that_believes_a_crc_is_caught(seed: int) -> None:
    def believes(data: bytes, place: int, log_offset: int, limit: int, _crc: int) -> object:
        return check_record(data, place, log_offset, limit, CHECK_NOTHING)

    rng = random.Random(f"records {seed}")
    whole = _records()
    grammar = Grammar(rng, BROKER_SEEDS)
    caught = 0
    for _ in range(300):
        data = grammar.bent(whole, 4)
        fast = [(one[0], one[1]) for one in scan_records(data, 0, 0, len(data), CHECK_BODY)]
        caught += fast != one_by_one(data, believes)
    campaign.note_control("hostile records", "a CRC is not compared", caught, 300)
    assert caught


# --- led by coverage ------------------------------------------------------------------------------


def _guided(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.guided", *arguments]
    artifacts = f"-artifact_prefix={folder}/"
    return subprocess.run(
        [*command, artifacts, str(folder / "corpus")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_inputs_led_by_coverage_find_nothing_in_the_parsers(folder: Path, seed: int) -> None:
    if not campaign.is_full():
        pytest.skip("in campaigns only: AEROBEE_CAMPAIGN=full")
    need("atheris")
    count = campaign.size("guided inputs")
    ran = _guided(folder, f"-runs={count}", f"-seed={seed}")
    assert ran.returncode == 0, f"seed {seed}\n{ran.stdout[-3_000:]}\n{ran.stderr[-6_000:]}"
    campaign.note("guided inputs", count)
    planted = _guided(folder, "--planted", f"-runs={count}", f"-seed={seed}")
    campaign.note_control("guided inputs", "a parser raises", int(planted.returncode != 0), 1)
    assert "ZeroDivisionError: planted" in planted.stdout + planted.stderr
