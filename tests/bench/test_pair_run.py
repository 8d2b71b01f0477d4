"""`make pair` at work: two servers of the working tree, in turns of hundredths of a second."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import pair
from tests.bench import servers as brokers
from tests.bench.loads import LOADS, QUEUES, Load, LoadFailed, Lost, StartFailed, build, stored
from tests.bench.pair import Server, measure, servers
from tests.bench.states import State
from tests.bench.turns import equal_requests

STATES = tuple(State(name, "the working tree", pair.ROOT, "") for name in ("this", "base"))
P6, P9, P11 = (next(one for one in LOADS if one.name == name) for name in ("P6", "P9", "P11"))
#: Both states are the working tree, stores go elsewhere, and a turn is never done.
RUN = """
import dataclasses, sys
from pathlib import Path
from tests.bench import pair
pair.CACHE = Path(sys.argv.pop(1))
pair.commit = lambda root, *_: dataclasses.replace(pair.working_tree(root), name="base")
pair.calibrate = lambda: {}
pair.report.calibration_line = lambda _: "not calibrated"
sys.exit(pair.main())
"""


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    build()


def processes_of(folder: Path) -> list[str]:
    """Command lines that name something in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in words and int(path.parent.name) != os.getpid():
            found.append(words)
    return found


def test_pairs_of_turns_cost_something_and_leave_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    found, requests = measure(P6, STATES, pair.PAIRS_A_LIFE + 1, 0.05, folder)
    assert len(found) == pair.PAIRS_A_LIFE + 1
    assert requests > 0
    for turn in (turn for both in found for turn in both):
        assert turn.messages_per_s > 0
        assert 0.1 < turn.cpu_us < 1000
        assert abs(turn.cpu_s * 1e6 - turn.cpu_us * requests * 32) < 1
    assert not folder.exists()
    assert processes_of(folder) == []


@pytest.mark.parametrize("load", [P6, P9], ids=lambda load: load.name)
def test_both_stores_hold_the_same_after_each_pair(load: Load, tmp_path: Path) -> None:
    with servers(STATES, load, tmp_path / "run") as (this, base):
        requests = equal_requests(this, base, load, 0, 0.02)
        for _ in range(2):
            this.turn(load, requests)
            base.turn(load, requests)
            assert this.acked == base.acked == stored(this, this.topic) == stored(base, base.topic)


def test_pulls_begin_again_at_the_end_of_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "FILL_REQUESTS", 40)
    with servers(STATES, P11, tmp_path / "run") as (this, base):
        assert this.acked == base.acked == 40 * 32
        turn = this.turn(P11, 440)
        # Ten full answers a queue, then one with nothing, and so on.
        assert 380 * 32 < turn.cpu_s * 1e6 / turn.cpu_us < 420 * 32


def test_refused_requests_and_lost_servers_fail_the_turn(tmp_path: Path) -> None:
    with servers(STATES, P6, tmp_path / "run") as (this, base):
        with base.wire() as wire:
            wire.create_topic(base.topic, QUEUES - 1)
        with pytest.raises(Lost, match="P6: 8 errors, code 1"):
            base.turn(P6, 32)
        this.children[0].end()
        with pytest.raises(LoadFailed, match="P6: this: "):
            this.turn(P6, 32)


def test_message_that_vanished_fails_the_turn(tmp_path: Path) -> None:
    with servers(STATES, P6, tmp_path / "run") as (this, _base):
        this.acked += 1
        with pytest.raises(Lost, match="holds 1024 messages of 1025 acknowledged"):
            this.turn(P6, 32)


def test_server_that_does_not_start_is_said_with_its_last_words(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tree = tmp_path / "tree"
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tree / ".venv" / "bin" / "aerobee").write_text("raise SystemExit('no such setting')")
    broken = State("base", "", tree, "")
    with pytest.raises(StartFailed, match="no such setting"), servers((broken,), P6, folder):
        pass
    assert not folder.exists()


def test_port_that_somebody_else_took_meanwhile_is_changed(tmp_path: Path) -> None:
    server = Server(STATES[0], tmp_path / "this", P6)
    taken = server.port
    try:
        with socket.create_server(("127.0.0.1", taken)):
            server.come_up()
        assert server.port != taken
        server.take_up(P6)
        assert server.turn(P6, 32).messages_per_s > 0
    finally:
        server.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_ends_at_once_and_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path), "--base", "HEAD", "--secs", "100"],
        cwd=pair.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with run:
        assert run.stdout is not None
        assert any("not calibrated" in line for line in run.stdout)
        while len(processes_of(tmp_path / "run")) < 2:
            assert run.poll() is None
        run.send_signal(number)
        _, error = run.communicate(timeout=20)
    assert (run.returncode, error) == (130, "pair: interrupted\n")
    assert processes_of(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
